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

// An owned is what the query finds of a page, at a time, that its commit may have written.
type owned struct {
	keys  []*datastore.Key
	found int64 // entities, written or not
	same  bool  // they are those of the page, and no others
}

// ownOf returns the keys of what the page of a range has written of its own entities, which are
// found by the job's query, as it was at a time. The record has no keys of theirs: whether those
// that are found are those of the page, its digest of them tells.
func ownOf(ctx context.Context, u undoer, r *record.Range, c commit, at time.Time) (own owned, err error) {
	switch {
	case !c.wrote.Own.Any():
		return owned{same: true}, nil
	case r.Alone:
		return owned{keys: []*datastore.Key{r.Start.Key}, found: 1, same: true}, nil
	}
	q := u.query
	if q.Many() && r.Kind != "" {
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
	own.same = own.found == r.Entities && bytes.Equal(record.KeysDigest(found), r.Keys)
	own.keys = slices.DeleteFunc(keyspace.Keys(found), func(key *datastore.Key) bool { return !c.wrote.Own.Has(key) })
	return own, nil
}

// sure reports whether the page has written each of the keys.
func (own owned) sure(w *undolog.Wrote) bool { return own.same || !w.Own.All }

// unfound returns how many entities of its own a page has written, at least, that are not among
// those found. If it has written all of its entities, and others are found, which of them are its
// own is not known. Versions do not tell: a write that changes nothing leaves an entity its
// version.
func (own owned) unfound(w *undolog.Wrote) int64 {
	switch {
	case own.sure(w):
		return max(0, w.Written-int64(len(own.keys)))
	case w.Written == own.found: // as many, and not the same
		return 1
	}
	return max(0, w.Written-own.found)
}
