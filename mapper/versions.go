package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/internal/intercept"
)

// NewClient returns the official Datastore client for the project's default database, with
// [ClientOption]. It suits an [Engine] and all other uses. Close it after [Engine.Drain] has
// returned.
func NewClient(ctx context.Context, project string, opts ...option.ClientOption) (*datastore.Client, error) {
	return NewClientWithDatabase(ctx, project, datastore.DefaultDatabaseID, opts...)
}

// NewClientWithDatabase is [NewClient] for another database.
func NewClientWithDatabase(
	ctx context.Context, project, database string, opts ...option.ClientOption,
) (*datastore.Client, error) {
	return datastore.NewClientWithDatabase(ctx, project, database,
		append(opts[:len(opts):len(opts)], ClientOption())...)
}

// ClientOption is the option that a Datastore client needs for an [Engine]. [NewClient] sets it,
// and [NewEngine] refuses a client without it. With it the engine reads and writes entities exactly
// as they are stored, and knows their versions:
//
//   - Everything that a function leaves alone stays bit for bit, even if the Go client can't
//     represent it: see [Update].
//   - Pages of an [Update] are read ahead and committed in one call. The commit requires that
//     nobody has changed the entities since. The function runs again on changed entities, and the
//     page is committed again.
//
// An entity that the function leaves unchanged is not read again at the commit. So its counts are
// for its state when the page was read. That is up to the time of two pages earlier, about 6 s by
// default (see [StartOptions].PageTime).
//
// If you make a client with option.WithGRPCConn, set [ClientInterceptor] on its connection instead.
func ClientOption() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(ClientInterceptor()))
}

// ClientInterceptor returns the interceptor that [ClientOption] adds to a connection. You need it
// only for a connection that you open yourself (option.WithGRPCConn). In an engine's calls it takes
// stored entities and their versions out of the answers, and puts them into commits. It does not
// change other calls.
func ClientInterceptor() grpc.UnaryClientInterceptor { return intercept.Unary }

// errPlainClient says what NewEngine needs.
var errPlainClient = errors.New("the Datastore client can't read and write entities as they are stored: make it by " +
	"mapper.NewClient, or with the option mapper.ClientOption(), or with mapper.ClientInterceptor() on its " +
	"connection")
