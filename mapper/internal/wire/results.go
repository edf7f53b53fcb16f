package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
)

// Results are what calls have read, as the database has it.
type Results struct {
	mu  sync.Mutex
	all map[string]*pb.EntityResult // by key
}

// Reading returns a context whose queries and lookups note what they read.
func Reading(ctx context.Context) (context.Context, *Results) {
	r := &Results{all: make(map[string]*pb.EntityResult)}
	return intercept.With(ctx, r), r
}

// Request leaves a request as it is.
func (r *Results) Request(any) error { return nil }

// Refused returns the error.
func (r *Results) Refused(err error) error { return err }

// Answer notes what was read.
func (r *Results) Answer(resp any) {
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
		r.all[pbkey.TextOf(result.GetEntity().GetKey())] = result
	}
}

// Of returns what was read under a key: nil if nothing was.
func (r *Results) Of(key *datastore.Key) *pb.EntityResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[pbkey.Text(key)]
}
