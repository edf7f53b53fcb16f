package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Open opens a client of a database. It must pass the given options to the client, besides the
// caller's own.
type Open func(opts ...option.ClientOption) (*datastore.Client, error)

// A database is one of the databases of the store. In an ID, its number is called the physical
// shard.
type database struct {
	number        int
	project, name string
	client        *datastore.Client

	// The following fields are for calls that go directly to the database, not through the router.
	conn   *grpc.ClientConn
	invoke grpc.UnaryInvoker
	opts   []grpc.CallOption
}

// direct is a context key for calls of a client that go directly to its database, and not to the
// router.
type direct struct{}

// introduction is a context key for the call by which connect learns a client's connection. That
// call is not sent to the database.
type introduction struct{}

var errIntroduced = errors.New("the client is known now")

// connect opens the client of a database, which gets the given number. The function route answers
// the calls of this client. If route is nil, the database answers them.
func connect(ctx context.Context, number int, open Open,
	route func(ctx context.Context, req, reply any) error) (*database, error) {
	d := &database{number: number}
	intercept := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if ctx.Value(introduction{}) != nil {
			call, _ := req.(*pb.LookupRequest)
			d.project, d.name, d.conn, d.invoke, d.opts = call.GetProjectId(), call.GetDatabaseId(), conn, invoke, opts
			return errIntroduced
		}
		if route == nil || ctx.Value(direct{}) != nil {
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		return route(ctx, req, reply)
	}
	var err error
	if d.client, err = open(option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept))); err != nil {
		return nil, err
	}
	_ = d.client.Get(context.WithValue(ctx, introduction{}, true), layoutKey, new(Layout))
	if d.conn == nil {
		d.client.Close()
		return nil, fmt.Errorf("the client of database %d has to be made with the options that it is given", number)
	}
	return d, nil
}

// Invoke calls the database directly. With NewStream it makes database a grpc.ClientConnInterface.
func (d *database) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	params, resource := "project_id="+url.QueryEscape(d.project), "projects/"+url.QueryEscape(d.project)
	if d.name != "" {
		params += "&database_id=" + url.QueryEscape(d.name)
		resource += "/databases/" + url.QueryEscape(d.name)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	md.Set("x-goog-request-params", params)
	md.Set("google-cloud-resource-prefix", resource)
	return d.invoke(metadata.NewOutgoingContext(ctx, md), method, req, reply, d.conn,
		append(d.opts[:len(d.opts):len(d.opts)], opts...)...)
}

// NewStream is never called, because the API of Datastore has no streams.
func (d *database) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "there are no streams")
}

func (d *database) api() pb.DatastoreClient { return pb.NewDatastoreClient(d) }

// tries is the maximum number of attempts of a call whose outcome is unknown.
const tries = 20

// lost reports whether, after this error, nobody knows if the call took effect.
func lost(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal:
		return true
	}
	return false
}

// pause waits for a random time before a retry, or until ctx ends. The wait doubles with each
// attempt: it is at most 10 ms for attempt 0, and at most 2 s from attempt 8 on.
func pause(ctx context.Context, attempt int) error {
	d := min(10*time.Millisecond<<min(attempt, 10), 2*time.Second)
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(d/2 + rand.N(d/2)):
		return nil
	}
}

// read makes a call that only reads. It repeats the call if the outcome is unknown.
func read[T any](ctx context.Context, call func() (T, error)) (answer T, err error) {
	for attempt := range tries {
		if answer, err = call(); err == nil || !lost(err) || ctx.Err() != nil {
			return answer, err
		}
		if err := pause(ctx, attempt); err != nil {
			return answer, err
		}
	}
	return answer, err
}
