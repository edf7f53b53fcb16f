package wire

import (
	"context"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
)

// A call is what the context of calls asks the interceptor for.
type call interface {
	request(req any) error
	answer(resp any)
}

type callKey struct{}

// Intercept is a client's interceptor.
func Intercept(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c, _ := ctx.Value(callKey{}).(call)
	if c == nil {
		return invoke(ctx, method, req, resp, conn, opts...)
	}
	if err := c.request(req); err != nil {
		return err
	}
	err := invoke(ctx, method, req, resp, conn, opts...)
	if err == nil {
		c.answer(resp)
	}
	return err
}

// Versions are those of the results of queries, one after the other, or of the mutations of the last commit. Where the
// connection has no interceptor there are none. They are for the goroutine that makes the calls.
type Versions struct{ Of []int64 }

// Noting returns a context whose calls note versions.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return context.WithValue(ctx, callKey{}, v), v
}

func (v *Versions) request(any) error { return nil }

func (v *Versions) answer(resp any) {
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		for _, r := range resp.GetBatch().GetEntityResults() {
			v.Of = append(v.Of, r.Version)
		}
	case *pb.CommitResponse:
		v.Of = v.Of[:0]
		for _, r := range resp.MutationResults {
			v.Of = append(v.Of, r.Version)
		}
	}
}

// Last returns the version of the n-th mutation from the end of the last commit, counted from 1; 0 is unknown.
func (v *Versions) Last(n int) int64 {
	if n < 1 || n > len(v.Of) {
		return 0
	}
	return v.Of[len(v.Of)-n]
}

// Found has the versions of the entities that lookups have found.
type Found struct{ results []*pb.EntityResult }

// Looking returns a context whose lookups note versions, of few entities.
func Looking(ctx context.Context) (context.Context, *Found) {
	f := new(Found)
	return context.WithValue(ctx, callKey{}, f), f
}

func (f *Found) request(any) error { return nil }

func (f *Found) answer(resp any) {
	if resp, ok := resp.(*pb.LookupResponse); ok {
		f.results = append(f.results, resp.Found...)
	}
}

// Version returns the version of an entity that has no parent, and a name; 0 is unknown.
func (f *Found) Version(key *datastore.Key) int64 {
	for _, r := range f.results {
		if path := r.GetEntity().GetKey().GetPath(); len(path) == 1 && path[0].Kind == key.Kind && path[0].GetName() == key.Name {
			return r.Version
		}
	}
	return 0
}
