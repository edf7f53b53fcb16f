// Command quickstart is the service of docs/quickstart.md: 50,000 accounts in an embedded
// Datastore, and a mapper that credits them. It also has the prebuilt mappers and an export. It
// needs nothing else, serves the jobs API and the dashboard on this machine only, and keeps its
// data in memory.
//
// The mapper asks a ledger, which lacks some accounts at first. POST /ledger/mend adds them, and
// POST /ledger/break removes them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"gocloud.dev/blob/fileblob"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

type Account struct{ Balance int64 }

type Credit struct{ Amount int64 }

var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	if !ledger.has(a.Key.Name) {
		return mapper.Permanent(fmt.Errorf("the ledger has no %s", a.Key.Name)) // another attempt would not help
	}
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// ledger stands for another service, which should know all accounts. While it is broken, it does
// not know one account in a hundred.
var ledger accounts

type accounts struct{ broken atomic.Bool }

func (l *accounts) has(account string) bool {
	return !l.broken.Load() || !strings.HasSuffix(account, "77")
}

// The service's project and queue, and the operator who sends all requests.
const (
	project  = "quickstart"
	location = "projects/" + project + "/locations/local"
	queue    = location + "/queues/mapper"
	operator = "ann@example.com"
)

// config has the values of the command's flags.
type config struct {
	entities int
	addr     string
}

func main() {
	command.Main("quickstart", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.IntVar(&c.entities, "entities", 50000, "how many accounts to write, `N` in [0, 1000000]")
	flags.StringVar(&c.addr, "address", "localhost:8080", "the address of this machine to listen on, `HOST:PORT`")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, command.Between("-entities", c.entities, 0, 1_000_000)
}

// run runs the service until ctx ends.
func run(ctx context.Context, c config, stdout io.Writer) error {
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return fmt.Errorf("-address: %w", err)
	}
	defer listener.Close()
	url := "http://" + listener.Addr().String()
	e, err := emulator.Start(nil)
	if err != nil {
		return err
	}
	defer e.Close()
	files, err := os.MkdirTemp("", "quickstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	client, err := e.DatastoreClient(ctx, project, mapper.ClientOption())
	if err != nil {
		return err
	}
	defer client.Close()
	handler, err := newHandler(ctx, e, client, url, files)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Writing %d accounts.\n", c.entities)
	if err := writeAccounts(ctx, client, c.entities); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	ledger.broken.Store(true)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	defer server.Close()
	fmt.Fprintf(stdout, `Serving until you press Ctrl+C, which deletes all data. In another terminal:
  export SCATTERMAP_SERVICE=%s
Dashboard: %s/dashboard/
Exported files: %s
`, url, url, files)
	<-ctx.Done()
	return nil
}

// newHandler returns the service's handler: for Cloud Tasks, the jobs API, the dashboard and the
// ledger.
func newHandler(
	ctx context.Context, e *emulator.Emulator, client *datastore.Client, url, files string,
) (http.Handler, error) {
	taskClient, err := e.TasksClient(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := taskClient.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queue,
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 4}}}); err != nil {
		return nil, err
	}
	q, err := tasks.NewQueue(taskClient, queue, url+"/mapper/",
		&tasks.Options{InsecureSkipVerify: true}) // the emulator's tasks have no tokens
	if err != nil {
		return nil, err
	}
	bucket, err := fileblob.OpenBucket(files, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, err
	}
	exports, err := export.NewEntities("export", bucket, nil)
	if err != nil {
		return nil, err
	}
	warnings := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	engine, err := mapper.NewEngine(client, q, &mapper.EngineOptions{Logger: warnings,
		Mappers: slices.Concat([]mapper.AnyMapper{AddCredit}, prebuilt.Mappers(), exports.Mappers())})
	if err != nil {
		return nil, err
	}
	jobs, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: local, Logger: warnings})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/mapper/", engine.Handler())
	mux.Handle("/jobs", jobs)
	mux.Handle("/jobs/", jobs)
	mux.Handle("/dashboard/", dashboard.NewHandler(engine, &dashboard.Options{Allow: local, Logger: warnings}))
	mux.HandleFunc("POST /ledger/{what}", changeLedger)
	return mux, nil
}

// local allows requests from this machine only. It returns the same operator for all of them.
func local(r *http.Request) (who string, err error) {
	if _, err := auth.Loopback(r); err != nil {
		return "", errors.Join(auth.ErrForbidden, err)
	}
	return operator, nil
}

func changeLedger(w http.ResponseWriter, r *http.Request) {
	if _, err := local(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	switch r.PathValue("what") {
	case "mend":
		ledger.broken.Store(false)
		fmt.Fprintln(w, "The ledger has all accounts.")
	case "break":
		ledger.broken.Store(true)
		fmt.Fprintln(w, "The ledger lacks one account in a hundred.")
	default:
		http.NotFound(w, r)
	}
}

// writeAccounts writes n accounts without a balance.
func writeAccounts(ctx context.Context, client *datastore.Client, n int) error {
	const batch = 500
	for first := 0; first < n; first += batch {
		var keys []*datastore.Key
		for i := first; i < min(n, first+batch); i++ {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("user-%06d", i), nil))
		}
		if _, err := client.PutMulti(ctx, keys, make([]Account, len(keys))); err != nil {
			return err
		}
	}
	return nil
}
