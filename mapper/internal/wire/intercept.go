package wire

import (
	"context"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
)

// A call is what the context of calls asks the interceptor for.
type call interface {
	request(req any) error
	answer(resp any)
	refused(err error) error
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
	if err != nil {
		return c.refused(err)
	}
	c.answer(resp)
	return nil
}

// Versions are those of the results of queries, one after the other, or of the mutations of the last commit. Where the
// connection has no interceptor there are none. They are for the goroutine that makes the calls.
type Versions struct {
	Of []int64

	on map[string]Condition // what the next commit requires, by key
}

// Noting returns a context whose calls note versions.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return context.WithValue(ctx, callKey{}, v), v
}

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
