package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
)

// Taken are entities that lookups take from the client, which gets their keys. Lookups of several goroutines may want
// the same.
type Taken struct {
	mu  sync.Mutex
	all map[string]*taken // by key
}

type taken struct {
	wanted int
	entity *pb.Entity
}

// TakenBy returns a context whose lookups take what is wanted.
func TakenBy(ctx context.Context) (context.Context, *Taken) {
	t := new(Taken)
	return intercept.With(ctx, t), t
}

// Want has lookups take the entities of keys. It is followed by [Taken.Take].
func (t *Taken) Want(keys []*datastore.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[string]*taken, len(keys))
	}
	for _, key := range keys {
		text := pbkey.Text(key)
		if t.all[text] == nil {
			t.all[text] = new(taken)
		}
		t.all[text].wanted++
	}
}

// Take returns what lookups have found of entities that were wanted, nil for what they have not, and keeps nothing.
func (t *Taken) Take(keys []*datastore.Key) []*pb.Entity {
	t.mu.Lock()
	defer t.mu.Unlock()
	entities := make([]*pb.Entity, len(keys))
	for i, key := range keys {
		text := pbkey.Text(key)
		found := t.all[text]
		if found == nil {
			continue
		}
		entities[i] = found.entity
		if found.wanted--; found.wanted == 0 {
			delete(t.all, text)
		}
	}
	return entities
}

// Request leaves a request as it is.
func (t *Taken) Request(any) error { return nil }

// Refused returns the error.
func (t *Taken) Refused(err error) error { return err }

// Answer takes what is wanted.
func (t *Taken) Answer(resp any) {
	lookup, ok := resp.(*pb.LookupResponse)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == 0 {
		return
	}
	for _, r := range lookup.GetFound() {
		if found := t.all[pbkey.TextOf(r.GetEntity().GetKey())]; found != nil {
			found.entity = take(r)
		}
	}
}
