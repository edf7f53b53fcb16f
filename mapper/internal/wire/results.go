package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
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
		r.all[KeyOf(result.GetEntity().GetKey()).Encode()] = result
	}
}

// Of returns what was read under a key: nil if nothing was.
func (r *Results) Of(key *datastore.Key) *pb.EntityResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key.Encode()]
}

// KeyOf returns a key as the client has it.
func KeyOf(k *pb.Key) (key *datastore.Key) {
	for _, e := range k.GetPath() {
		key = &datastore.Key{Kind: e.Kind, ID: e.GetId(), Name: e.GetName(), Parent: key, Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}
