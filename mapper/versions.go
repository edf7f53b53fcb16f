package mapper

import (
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// WithVersions is an option for the Datastore client of an [Engine], with which jobs are faster and get less in the way
// of other clients:
//
//	client, err := datastore.NewClient(ctx, project, mapper.WithVersions())
//
// Pages of an [Update] are read ahead then, with the versions of their entities, and committed in one call, on
// the condition that nobody has changed the entities since. A page that somebody has changed is done once more, in a
// transaction. Without the option every page is a transaction, which takes two calls more, and has its entities locked
// while the function runs, if the database has pessimistic concurrency.
//
// What is written is the same either way. An entity that the function leaves as it is, though, is not looked at once
// more: it is processed, and [Entity.Count] counts it, as it was when its page was read, which is up to two pages before the
// commit (see StartOptions.PageTime). Without the option it is as it is at the commit, and one that was deleted meanwhile, or
// has left the query, is not counted.
//
// A client that is made with option.WithGRPCConn needs [VersionsInterceptor] on its connection in place of it.
func WithVersions() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(VersionsInterceptor()))
}

// VersionsInterceptor is what [WithVersions] adds to a connection: it notes the versions in answers, and
// sets conditions in commits, for calls that an engine makes. Other calls pass it as they are.
func VersionsInterceptor() grpc.UnaryClientInterceptor { return wire.Intercept }
