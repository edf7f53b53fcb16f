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

// An owned is the result of running the job's query over a page's range, as of a time in the past.
type owned struct {
	keys  []*datastore.Key // keys of entities that the page may have written
	found int64            // number of entities found, written or not
	same  bool             // whether the query found exactly the entities that the page processed
}

// ownOf returns which of the page's own entities its commit wrote. The record has only hashes of
// the keys. So ownOf runs the job's query as of the time at. A digest in the record tells whether
// it finds exactly the page's entities.
func (u undoer) ownOf(ctx context.Context, r *record.Range, c commit, at time.Time) (own owned, err error) {
	switch {
	case !c.wrote.Own.Any():
		return owned{same: true}, nil
	case r.Alone:
		return owned{keys: []*datastore.Key{r.Start.Key}, found: 1, same: true}, nil
	}
	q := u.query
	if r.Kind != "" { // the query has several kinds or namespaces
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

// sure reports whether the page has certainly written each entity in keys.
func (own owned) sure(w *undolog.Wrote) bool { return own.same || !w.Own.All }

// unfound returns the least number of the page's own entities that it has written and that the
// query did not find. If the page wrote all its entities, and the query finds other ones, it is
// unknown which ones are the page's. Versions do not help: a write without a change keeps the
// version.
func (own owned) unfound(w *undolog.Wrote) int64 {
	switch {
	case own.sure(w):
		return max(0, w.Written-int64(len(own.keys)))
	case w.Written == own.found: // the number is the same, but at least one entity differs
		return 1
	}
	return max(0, w.Written-own.found)
}

// withRestored adds entities of the page that batches of earlier attempts have restored. Those
// attempts may have found entities that the query does not find any more. The parameter digest is
// the digest of the keys of all entities that the page processed ([record.Range.Keys]).
func (own owned) withRestored(o *outcome, w *undolog.Wrote, digest []byte) owned {
	var restored []*datastore.Key
	for _, key := range o.batched {
		is := func(other *datastore.Key) bool { return other.Equal(key) }
		if !w.Own.Has(key) || slices.ContainsFunc(w.Others, is) {
			continue
		}
		restored = append(restored, key)
		if !slices.ContainsFunc(own.keys, is) {
			own.keys, own.found = append(own.keys, key), own.found+1
		}
	}
	switch {
	case own.same:
	case int64(len(restored)) == w.Written: // all of them are known, and the query's others are not the page's
		own.keys, own.found, own.same = restored, w.Written, true
	default: // with them, the keys may be exactly the page's
		at := make([]*keyspace.Position, len(own.keys))
		for i, key := range own.keys {
			at[i] = keyspace.At(key)
		}
		own.same = bytes.Equal(record.KeysDigest(keyspace.Sort(at)), digest)
	}
	return own
}
