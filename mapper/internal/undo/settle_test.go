package undo

import (
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestNext searches for the deletion of an entity after a commit, in a database that does not serve
// all states since then. Its clock is late, or it keeps the past for a shorter time.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuses func(at, committed time.Time) bool
		found   bool
	}{
		{"all is served", func(time.Time, time.Time) bool { return false }, true},
		{"the last minute is the future", func(at, _ time.Time) bool { return time.Since(at) < time.Minute }, true},
		{"the time after the commit is not kept", func(at, committed time.Time) bool {
			return at.Sub(committed) < 5*time.Minute
		}, false},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, to{1: 7})
			_, stored, err := w.undoer().record(w.Context(), w.ranges[0].Key())
			if err != nil {
				t.Fatal(err)
			}
			is := commit{version: stored.Version, at: stored.UpdateTime.AsTime()}
			time.Sleep(time.Minute)
			w.somebody(to{1: gone})
			deleted := time.Now()
			time.Sleep(10 * time.Minute)
			w.taps(func(req, _ any, pass func() error) error {
				if at := readTime(req); !at.IsZero() && c.refuses(at, is.at) {
					return status.Error(codes.InvalidArgument, "the past is not kept")
				}
				return pass()
			})
			s := settling{past: past{w.undoer()}, c: is, from: is.at, until: time.Now()}
			at, found, err := s.next(w.Context(), &entity{key: keyOf(1)}, nil)
			if found != c.found || found && (err != nil || !at.Equal(deleted)) || !found && !fault.IsFatal(err) {
				t.Errorf("%s: %v after the commit, found %v, %v", c.name, at.Sub(is.at), found, err)
			}
		})
	}
}

// A dated is an entity of a job whose ShardBy is a property with times.
type dated struct {
	N  int64
	At time.Time
}

// TestTimes undoes a page of a job whose ShardBy is a property with times. The page's range ends
// between two entities.
func TestTimes(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		write := func(n int64, ids int64, more ...*datastore.Mutation) {
			for id := range ids {
				more = append(more, datastore.NewUpsert(keyOf(id+1), &dated{n, day.Add(time.Duration(id) * time.Hour)}))
			}
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(more...); return err })
		}
		write(1, 3)
		w.job.Query, w.job.Times = []byte(`{"kind":"K","shard_by":"At"}`), true
		r := w.ranges[0]
		r.Start = &keyspace.Position{Valued: true, Value: day, Key: keyOf(1)}
		r.End = &keyspace.Position{Valued: true, Value: day.Add(90 * time.Minute), Key: keyOf(1)}
		wrote := undolog.Wrote{Own: undolog.KeysOf(keysOf(1, 2), true), Written: 2}
		r.State, r.Open, r.Wrote, r.Entities = record.Done, "", wrote.Encode(), 2
		r.Keys = record.KeysDigest(keyspace.AtAll(keysOf(1, 2)))
		write(7, 2, r.Update())
		w.wantUndo(0, "1 becomes 1", "2 becomes 1")
	})
}
