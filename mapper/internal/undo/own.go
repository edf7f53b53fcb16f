package undo

import (
	"bytes"
	"context"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// An owned is what the job's query finds in a page's range at a time.
type owned struct {
	keys  []*datastore.Key // of entities that the page may have written
	found int64            // number of entities found, written or not
	same  bool             // they are exactly the page's entities
}

// ownOf returns the page's own entities that its commit wrote. It runs the job's query as of a
// time, because the record has only hashes of the keys. The digest in the record tells whether the
// query found exactly the page's entities.
func (u undoer) ownOf(ctx context.Context, r *record.Range, c commit, at time.Time) (own owned, err error) {
	switch {
	case !c.wrote.Own.Any():
		return owned{same: true}, nil
	case r.Alone:
		return owned{keys: []*datastore.Key{r.Start.Key}, found: 1, same: true}, nil
	}
	q := u.query
	if r.Kind != "" { // the query is over several spaces
		q = q.In(r.Space())
	}
	q.KeysOnly, q.ReadTime = true, at
	stream := source.NewStream(ctx, u.source.Of(ctx, q), q, r.Start, r.End, false)
	defer stream.Close()
	found, err := stream.Peek(math.MaxInt)
	if err != nil {
		return own, err
	}
	own.found = int64(len(found))
	own.same = bytes.Equal(record.KeysDigest(found), r.Keys)
	own.keys = slices.DeleteFunc(keyspace.Keys(found), func(key *datastore.Key) bool { return !c.wrote.Own.Has(key) })
	return own, nil
}

// sure reports whether the page certainly wrote each of the keys.
func (own owned) sure(w *undolog.Wrote) bool { return own.same || !w.Own.All }

// unfound returns a lower bound for the number of the page's own entities that it wrote and that
// the query did not find. If the page wrote all its entities and the query finds others, it is
// unknown which of them are the page's. Versions don't tell: a write that changes nothing leaves
// the version as before.
func (own owned) unfound(w *undolog.Wrote) int64 {
	switch {
	case own.sure(w):
		return max(0, w.Written-int64(len(own.keys)))
	case w.Written == own.found: // the same number, but other entities
		return 1
	}
	return max(0, w.Written-own.found)
}
