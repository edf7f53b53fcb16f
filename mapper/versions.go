package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/internal/intercept"
)

// NewClient returns a Datastore client for an [Engine], and for all else: it is the official client
// of the project's default database, made with [ClientOption].
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

// ClientOption is the option that the Datastore client of an [Engine] has, see [NewClient];
// [NewEngine] refuses one without. By it an engine reads and writes entities as they are stored,
// and knows their versions:
//
//   - What a function leaves alone stays bit for bit, also where the Go client has no form for it, see [Update].
//   - Pages of an [Update] are read ahead, and committed in one call, on the condition that nobody has changed the
//     entities since. Those that somebody has changed are run again, and the page is committed once more.
//
// So an entity that the function leaves as it is, is not looked at once more: it is processed, and
// [Entity.Count] counts it, as it was when its page was read, which is up to two pages before the
// commit (see StartOptions.PageTime).
//
// A client that is made with option.WithGRPCConn needs [ClientInterceptor] on its connection in
// place of it.
func ClientOption() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(ClientInterceptor()))
}

// ClientInterceptor is what [ClientOption] adds to a connection: it takes entities and versions
// from answers, and puts them into commits, for calls that an engine makes. Other calls pass it as
// they are.
func ClientInterceptor() grpc.UnaryClientInterceptor { return intercept.Unary }

// errPlainClient says what New needs.
var errPlainClient = errors.New("the Datastore client can't read and write entities as they are stored: make it by " +
	"mapper.NewClient, or with the option mapper.ClientOption(), or with mapper.ClientInterceptor() on its " +
	"connection")
