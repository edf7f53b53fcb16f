package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
)

// Taken are entities that lookups take from the client, which gets their keys. Lookups of several
// goroutines may want the same.
type Taken struct {
	mu  sync.Mutex
	all map[string]*taken // by key
}

type taken struct {
	wanted int
	stays  bool // with the client: only the stamp is wanted
	stamp  Stamp
}

// TakenBy returns a context whose lookups take what is wanted.
func TakenBy(ctx context.Context) (context.Context, *Taken) {
	t := new(Taken)
	return intercept.With(ctx, t), t
}

// Want has lookups take the entities of keys, but leave the first ones to the client, whose
// versions are wanted. It is followed by [Taken.Take].
func (t *Taken) Want(keys []*datastore.Key, stay int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[string]*taken, len(keys))
	}
	for i, key := range keys {
		text := pbkey.Text(key)
		if t.all[text] == nil {
			t.all[text] = &taken{stays: i < stay, stamp: Stamp{Gone: true}}
		}
		t.all[text].wanted++
	}
}

// Take returns what lookups have found of entities that were wanted, and keeps nothing.
func (t *Taken) Take(keys []*datastore.Key) []Stamp {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamps := make([]Stamp, len(keys))
	for i, key := range keys {
		text := pbkey.Text(key)
		found := t.all[text]
		if found == nil {
			continue
		}
		stamps[i] = found.stamp
		if found.wanted--; found.wanted == 0 {
			delete(t.all, text)
		}
	}
	return stamps
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
		found := t.all[pbkey.TextOf(r.GetEntity().GetKey())]
		if found == nil {
			continue
		}
		var e *pb.Entity
		if !found.stays {
			e = take(r)
		}
		found.stamp = stampOf(r, e)
	}
}
