package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/spf13/pflag"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
)

// A database is the Datastore database that a command's flags and the environment name.
type database struct {
	project, id string
	fallback    string // the project if neither a flag nor the environment names one; may be empty
}

func (db *database) define(flags *pflag.FlagSet) {
	flags.StringVar(&db.project, "project", "", "the `project` of the database; by default $DATASTORE_PROJECT_ID, "+
		"$GOOGLE_CLOUD_PROJECT or the project of the credentials")
	flags.StringVar(&db.id, "database", "", "the `ID` of the database; by default the default database")
}

func (db *database) open(ctx context.Context) (*datastore.Client, error) {
	db.project = cmp.Or(db.project, os.Getenv("DATASTORE_PROJECT_ID"), os.Getenv("GOOGLE_CLOUD_PROJECT"),
		db.fallback, datastore.DetectProjectID)
	client, err := mapper.NewClientWithDatabase(ctx, db.project, db.id,
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(new(patience).call)))
	if err != nil {
		return nil, fmt.Errorf("%w; set its project by --project, $DATASTORE_PROJECT_ID or "+
			"$GOOGLE_CLOUD_PROJECT", err)
	}
	return client, nil
}

// String returns a text that says which database it is, and where.
func (db *database) String() string {
	project := fmt.Sprintf("the project %q", db.project)
	if db.project == datastore.DetectProjectID {
		project = "the project of the credentials"
	}
	where := fmt.Sprintf("in the database %q of %s", cmp.Or(db.id, "(default)"), project)
	if host := os.Getenv("DATASTORE_EMULATOR_HOST"); host != "" {
		where += ", at " + host + " ($DATASTORE_EMULATOR_HOST)"
	}
	return where
}

// explain adds the database's name to the error [mapper.ErrNoSuchJob], because the job may be in
// another database. It returns other errors unchanged.
func (db *database) explain(err error) error {
	if errors.Is(err, mapper.ErrNoSuchJob) {
		return fmt.Errorf("%w %v", err, db)
	}
	return err
}

// A patience is a time limit for the first answer of a database. Without it, the client would retry
// each call for a minute, and the error would only say that the call took too long.
type patience struct {
	mu       sync.Mutex
	begun    time.Time
	answered bool
}

// longest is how long a command waits for a database's first answer. Only tests change it.
var longest = 10 * time.Second

// left returns how long a call may still wait for the database's first answer, and whether the
// database has answered. The caller sets answers if it has just got an answer.
func (p *patience) left(answers bool) (left time.Duration, answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun.IsZero() {
		p.begun = time.Now()
	}
	p.answered = p.answered || answers
	return longest - time.Since(p.begun), p.answered
}

// call is a grpc.UnaryClientInterceptor. It cancels a call if the database has not answered any
// call within the time limit.
func (p *patience) call(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	left, answered := p.left(false)
	if answered {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	within, cancel := context.WithTimeout(ctx, max(left, time.Second))
	defer cancel()
	// Otherwise, a refused connection would end the call at once, and the client would wait ever longer
	// before it calls again.
	opts = append(slices.Clip(opts), grpc.WaitForReady(true))
	err := invoke(within, method, req, reply, cc, opts...)
	code := status.Code(err)
	_, called := status.FromError(err) // other errors come from this process, such as from mapper.ClientOption
	left, answered = p.left(called && code != codes.Unavailable && code != codes.DeadlineExceeded)
	if err == nil || !called || answered || ctx.Err() != nil || left > 0 {
		return err
	}
	address := cc.Target()
	address = address[strings.LastIndex(address, "/")+1:]
	return fmt.Errorf("the database at %s does not answer within %v: check the network and "+
		"$DATASTORE_EMULATOR_HOST: %v", address, longest,
		status.Convert(err).Message())
}
