package wire

import (
	"context"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/internal/pbkey"
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
	Of []Stamp

	on      map[string]Condition // what the next commit requires, by key
	updated map[string]int64     // when entities that lookups have found were written, by key
}

// A Stamp is what the database says of an entity besides its properties; 0 is unknown.
type Stamp struct {
	Version int64
	At      int64 // when it was written, in microseconds behind 1970
}

// microsOf returns when the entity of a result was written; 0 is unknown.
func microsOf(r *pb.EntityResult) int64 {
	if t := r.GetUpdateTime(); t.IsValid() {
		return t.AsTime().UnixMicro()
	}
	return 0
}

// Updated returns when an entity was written that a lookup has found; 0 is unknown.
func (v *Versions) Updated(key *datastore.Key) int64 { return v.updated[key.Encode()] }

// Noting returns a context whose calls note versions.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return context.WithValue(ctx, callKey{}, v), v
}

func (v *Versions) answer(resp any) {
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		for _, r := range resp.GetBatch().GetEntityResults() {
			v.Of = append(v.Of, Stamp{r.Version, microsOf(r)})
		}
	case *pb.LookupResponse:
		if v.updated == nil {
			v.updated = make(map[string]int64)
		}
		for _, r := range resp.GetFound() {
			v.updated[pbkey.Of(r.GetEntity().GetKey()).Encode()] = microsOf(r)
		}
	case *pb.CommitResponse:
		v.Of = v.Of[:0]
		for _, r := range resp.MutationResults {
			v.Of = append(v.Of, Stamp{Version: r.Version})
		}
	}
}

// Last returns the version of the n-th mutation from the end of the last commit, counted from 1; 0 is unknown.
func (v *Versions) Last(n int) int64 {
	if n < 1 || n > len(v.Of) {
		return 0
	}
	return v.Of[len(v.Of)-n].Version
}
