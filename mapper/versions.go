package mapper

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/internal/intercept"
)

// NewClient returns the official Datastore client for the project's default database, with
// [ClientOption]. It can be used for an [Engine] and for everything else. Close it after
// [Engine.Drain] has returned.
func NewClient(ctx context.Context, project string, opts ...option.ClientOption) (*datastore.Client, error) {
	return NewClientWithDatabase(ctx, project, datastore.DefaultDatabaseID, opts...)
}

// NewClientWithDatabase is [NewClient] for another database. Like gcloud, it also takes "(default)"
// for the default database, which the Datastore API refuses.
func NewClientWithDatabase(
	ctx context.Context, project, database string, opts ...option.ClientOption,
) (*datastore.Client, error) {
	if database == "(default)" {
		database = datastore.DefaultDatabaseID
	}
	client, err := datastore.NewClientWithDatabase(ctx, project, database,
		append(opts[:len(opts):len(opts)], ClientOption())...)
	if err != nil {
		return nil, fmt.Errorf("mapper: no client of Datastore for the project %q: %w (to call an emulator, set "+
			"DATASTORE_EMULATOR_HOST)", project, err)
	}
	return client, nil
}

// ClientOption is the option that a Datastore client needs for an [Engine]. [NewClient] sets it,
// and [NewEngine] refuses a client without it. With it the engine can read and write entities
// exactly as they are stored, and knows their versions. This makes two things possible:
//
//   - Fields that a function does not change stay as stored, bit for bit, even if the Go client
//     can't represent them: see [Update].
//   - An [Update] reads pages ahead and commits each in one call. The commit requires that nobody
//     has changed the entities since. If others have changed some, the function runs again on
//     these, and the page is committed again.
//
// The commit does not check entities that the function does not change. So counts for such an
// entity describe its state when the page was read. That is up to twice [StartOptions].PageTime
// before the commit: 6 s by default.
//
// If you make a client with option.WithGRPCConn, set [ClientInterceptor] on its connection instead.
func ClientOption() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(ClientInterceptor()))
}

// ClientInterceptor returns the interceptor that [ClientOption] adds to a connection. You need it
// only for a connection that you open yourself (option.WithGRPCConn). In an engine's calls it reads
// the stored form and the versions of entities from answers, and writes them into commits. It does
// not change other calls.
func ClientInterceptor() grpc.UnaryClientInterceptor { return intercept.Unary }

// errPlainClient is the error of [NewEngine] for a client without [ClientOption].
var errPlainClient = errors.New("the Datastore client can't read and write entities as they are stored: make it by " +
	"mapper.NewClient, or with the option mapper.ClientOption(), or with mapper.ClientInterceptor() on its " +
	"connection")
