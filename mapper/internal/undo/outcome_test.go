package undo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// counted returns the counters of an effect as text.
func counted(t *testing.T, e *function.Effect) string {
	t.Helper()
	values, err := e.Counters.Values()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(values)
}

// TestBatches undoes a page whose images do not fit in one commit. Some are restored in batches
// before the final commit. Each must be counted once, even if the final commit fails.
func TestBatches(t *testing.T) {
	inWorld(t, 1, []int64{1, 2, 3, 4, 5}, func(w *world) {
		w.page(0, map[int64]int64{1: 7, 2: 7, 3: 7, 4: 7, 5: gone})
		w.most.Store(1) // no image fits in a commit, so all need batches
		call := w.function()
		n := func(id int64) int64 {
			var is thing
			if err := w.client.Get(w.Context(), keyOf(id), &is); err != nil {
				return gone
			}
			return is.N
		}
		for attempt := range 2 {
			e, err := call(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[0].Key(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := says(e) + counted(t, e); got != "map[restored:5]" {
				t.Errorf("attempt %d: %s, want all to be restored before", attempt+1, got)
			}
			for id := range int64(5) {
				if got := n(id + 1); got != id+1 {
					t.Errorf("attempt %d: %d is %d", attempt+1, id+1, got)
				}
			}
			if batches, err := w.client.Count(w.Context(), datastore.NewQuery(record.BatchKind)); err != nil ||
				batches != 5 {
				t.Errorf("attempt %d: %d batches, %v", attempt+1, batches, err)
			}
		}
	})
}

// TestNoBatches checks that neither a rehearsal (a dry run) nor an undo that has ended commits
// batches.
func TestNoBatches(t *testing.T) {
	for name, rehearses := range map[string]bool{"a rehearsal": true, "the undo was aborted": false} {
		inWorld(t, 1, []int64{1, 2}, func(w *world) {
			w.page(0, map[int64]int64{1: 7, 2: 7})
			if !rehearses {
				w.undo.State = record.Aborted
				w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.undo.Update()); return err })
			}
			w.most.Store(1)
			e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref(), Rehearses: rehearses},
				w.ranges[0].Key(), nil)
			if rehearses && (err != nil || counted(t, e) != "map[restored:2]") || !rehearses &&
				!errors.Is(err, record.ErrState) {
				t.Errorf("%s: %v, %v", name, e, err)
			}
			var is thing
			if err := w.client.Get(w.Context(), keyOf(1), &is); err != nil || is.N != 7 {
				t.Errorf("%s: it is %d, %v", name, is.N, err)
			}
		})
	}
}

// TestCounts checks the counters of restored, removed and left entities.
func TestCounts(t *testing.T) {
	inWorld(t, 1, []int64{1, 2, 3}, func(w *world) {
		w.page(0, map[int64]int64{1: 7, 2: 7, 3: gone, 99: 7})
		w.somebody(map[int64]int64{2: 8})
		e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[0].Key(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := counted(t, e); got != "map[left:1 removed:1 restored:2]" {
			t.Errorf("counted %s", got)
		}
	})
}

// TestAlready undoes pages that wrote the entities 1, 2 and 3. Entities without anything to restore
// must be counted, too, so that the counters add up to three.
func TestAlready(t *testing.T) {
	for _, c := range []struct {
		name string
		job  func(w *world)
		want string
	}{
		{"one was put back by others", func(w *world) { w.page(0, to{1: 7, 2: 7, 3: gone}); w.somebody(to{1: 1}) },
			"map[already:1 restored:2]"},
		{"one was put back, and one changed", func(w *world) {
			w.page(0, to{1: 7, 2: 7, 3: gone})
			w.somebody(to{3: 3, 2: 8})
		}, "map[already:1 left:1 restored:1]"},
		{"one was put back after two pages", func(w *world) {
			w.page(1, to{1: 6})
			w.page(0, to{1: 7, 2: 7, 3: 7})
			w.somebody(to{1: 1})
		}, "map[already:1 restored:2]"},
		{"for one the write changed nothing", func(w *world) { w.page(0, to{1: 1, 2: 7, 3: 7}) },
			"map[already:1 restored:2]"},
		{"for one it changed nothing, and others have changed that since", func(w *world) {
			w.page(0, to{1: 1, 2: 7, 3: 7})
			w.somebody(to{1: 9})
		}, "map[already:1 restored:2]"},
		{"one was put back, and the undo comes after hours", func(w *world) {
			w.page(0, to{1: 7, 2: 7, 3: 7})
			w.somebody(to{1: 1})
			w.end()
			time.Sleep(2 * time.Hour)
		}, "map[already:1 restored:2]"},
		{"another page has written one later", func(w *world) { w.page(0, to{1: 7, 2: 7, 3: 7}); w.page(1, to{1: 8}) },
			"map[restored:2]"}, // and the undo of that page restores entity 3
		{"another page has put one back later", func(w *world) { w.page(0, to{1: 7, 2: 7, 3: 7}); w.page(1, to{1: 1}) },
			"map[restored:2]"}, // and the undo of that page counts entity 1
		{"others have deleted a new one", func(w *world) {
			w.page(0, to{1: 7, 2: 7, 3: 7, 99: 7})
			w.somebody(to{99: gone})
		}, "map[restored:3]"},
		{"others put one between the page's reads and its commit, and it stays", func(w *world) {
			w.between = func() { w.somebody(to{4: 4}) }
			w.page(0, to{1: 7, 2: 7, 3: 7})
		}, "map[restored:3]"},
	} {
		inWorld(t, 2, []int64{1, 2, 3}, func(w *world) {
			time.Sleep(10*time.Minute + 30*time.Second)
			c.job(w)
			e, err := w.run(0)
			if err != nil {
				t.Fatal(err)
			}
			if got := counted(t, e); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		})
	}
}

// TestPageNames checks which page ID pageNames returns for the bounds of an undo's range. The names
// of the records are "j." and the ID.
func TestPageNames(t *testing.T) {
	at := func(name string) *keyspace.Position {
		return keyspace.At(datastore.NameKey(record.RangeKind, name, nil))
	}
	for _, c := range []struct {
		at   *keyspace.Position
		want string
	}{{nil, "default"}, {at("j.5a"), "5a"}, {at("a"), "0"}, {at("z"), "g"}} {
		if got := pageNames("j.", c.at, "default"); got != c.want {
			t.Errorf("%v is at %q, want %q", c.at, got, c.want)
		}
	}
}
