package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
)

// Results are what calls have read, as the database has it. Where the connection has no interceptor there are none.
type Results struct {
	mu  sync.Mutex
	all map[string]*pb.EntityResult // by key
}

// Reading returns a context whose queries and lookups note what they read.
func Reading(ctx context.Context) (context.Context, *Results) {
	r := &Results{all: make(map[string]*pb.EntityResult)}
	return context.WithValue(ctx, callKey{}, r), r
}

func (r *Results) request(any) error       { return nil }
func (r *Results) refused(err error) error { return err }

func (r *Results) answer(resp any) {
	var results []*pb.EntityResult
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		results = resp.GetBatch().GetEntityResults()
	case *pb.LookupResponse:
		results = resp.GetFound()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, result := range results {
		r.all[pbkey.Of(result.GetEntity().GetKey()).Encode()] = result
	}
}

// Of returns what was read under a key: nil if nothing was.
func (r *Results) Of(key *datastore.Key) *pb.EntityResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key.Encode()]
}
