package undo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestLeft reads the list of entities that an undo did not restore, in several pages.
func TestLeft(t *testing.T) {
	inWorld(t, 0, nil, func(w *world) {
		const pages = 2*leftPage + 1
		for n := range int64(pages) {
			r := &record.Range{Job: w.undo.ID, Incarnation: w.undo.Incarnation, ID: record.RangeID(w.undo.Root(), n),
				State: record.Done}
			r.Leave([]undolog.Left{{Key: keyOf(n + 1), Why: "so"}})
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(r.Insert()); return err })
		}
		st, seen := store.New(w.client), make(map[int64]bool)
		for cursor, calls := "", 1; ; calls++ {
			left, next, err := Left(w.Context(), st, w.undo.Ref(), cursor)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range left {
				if seen[l.Key.ID] || l.Why != "so" {
					t.Errorf("%v is there twice, or for %q", l.Key, l.Why)
				}
				seen[l.Key.ID] = true
			}
			if cursor = next; next == "" {
				break
			}
		}
		if len(seen) != pages {
			t.Errorf("%d of %d are listed", len(seen), pages)
		}
		if _, _, err := Left(w.Context(), st, w.job.Ref(), ""); !errors.Is(err, fault.ErrArguments) {
			t.Errorf("what a job has left that is no undo: %v", err)
		}
		if _, _, err := Left(w.Context(), st, record.Ref{ID: "none"}, ""); !errors.Is(err, record.ErrNoSuchJob) {
			t.Errorf("of no job: %v", err)
		}
		for name, cleans := range map[string]func(j *record.Job){
			"was": func(j *record.Job) { j.Cleaned = true }, "is being": func(j *record.Job) { j.Cleaning = "all" },
		} {
			cleaned := *w.undo
			cleans(&cleaned)
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(cleaned.Update()); return err })
			if _, _, err := Left(w.Context(), st, w.undo.Ref(), ""); !errors.Is(err, record.ErrState) {
				t.Errorf("of a job that %s cleaned up: %v", name, err)
			}
		}
	})
}

// TestLeftLost reads the list if some entities did not fit in the undo's records. If one record is
// damaged, there must be an error: an incomplete list must not look complete.
func TestLeftLost(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		inWorld(t, 0, nil, func(w *world) {
			rng := rand.New(rand.NewPCG(1, 0))
			var many []undolog.Left
			for range 3000 {
				name := fmt.Sprintf("%x%x%x%x", rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64())
				many = append(many, undolog.Left{Key: datastore.NameKey("K", name, nil), Why: "so"})
			}
			for n := range int64(2) {
				r := &record.Range{Job: w.undo.ID, Incarnation: w.undo.Incarnation,
					ID: record.RangeID(w.undo.Root(), n), State: record.Done}
				if r.Leave(many); damaged && n == 0 {
					r.Left = []byte("\x00x")
				}
				w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(r.Insert()); return err })
			}
			left, next, err := Left(w.Context(), store.New(w.client), w.undo.Ref(), "")
			if damaged {
				if err == nil || !strings.Contains(err.Error(), "what a page has left") {
					t.Errorf("a damaged record: %v", err)
				}
				return
			}
			listed, lost := 0, 0
			for _, l := range left {
				var n int
				if _, err := fmt.Sscanf(l.Why, "%d more are not listed", &n); err == nil && l.Key == nil {
					lost += n
				} else {
					listed++
				}
			}
			if err != nil || next != "" || lost == 0 || listed == 0 || listed+lost != 2*len(many) {
				t.Errorf("%d listed, %d lost, then %q, %v", listed, lost, next, err)
			}
		})
	}
}

// TestIDUnknown checks that ID returns an error if it can't read which IDs are taken.
func TestIDUnknown(t *testing.T) {
	inWorld(t, 0, nil, func(w *world) {
		w.fail(0, false, func() {
			id, err := ID(w.Context(), store.New(w.client), w.job, w.job.Params)
			if err == nil || !strings.Contains(err.Error(), "injected") {
				t.Errorf("%q, %v", id, err)
			}
		})
	})
}

// TestIDs gives a job more aborted undos than there are default IDs. Another job has the first
// default ID.
func TestIDs(t *testing.T) {
	inWorld(t, 0, nil, func(w *world) {
		st, seen := store.New(w.client), make(map[string]bool)
		for n := 0; ; n++ {
			id, err := ID(w.Context(), st, w.job, w.job.Params)
			if err != nil {
				if n != 19 || !errors.Is(err, record.ErrState) {
					t.Errorf("after %d undos: %v", n, err)
				}
				break
			}
			if seen[id] {
				t.Fatalf("%s twice", id)
			}
			seen[id] = true
			aborted := &record.Job{ID: id, Mapper: Name("m"), Params: w.job.Params, State: record.Aborted}
			if _, err := w.client.Put(w.Context(), record.JobKey(id), aborted); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestID checks which default ID the undo of a job gets.
func TestID(t *testing.T) {
	long := fmt.Sprintf("%090d", 7)
	job := &record.Job{ID: "j", Incarnation: "0123456789abcdef01234567", Mapper: "m"}
	params := []byte(`{"job":"j"}`)
	for _, c := range []struct {
		name  string
		job   string
		other *record.Job // a job that has the first default ID
		want  string
	}{
		{"nobody has it", "j", nil, "undo-j"},
		{"it has it already", "j", &record.Job{Mapper: Name("m"), Params: params}, "undo-j"},
		{"an aborted one has it", "j", &record.Job{Mapper: Name("m"), Params: params, State: record.Aborted},
			"undo-j-01234567-1"},
		{"another job has it", "j", &record.Job{Mapper: "other", Params: params}, "undo-j-01234567-1"},
		{"that of another job of its ID has it", "j", &record.Job{Mapper: Name("m"), Params: []byte(`{}`)},
			"undo-j-01234567-1"},
		{"a long one", long[:71], nil, "undo-" + long[:71]},
		{"a longer one is cut off, and has a hash", long[:71] + "7", nil, "undo-" + long[:62] + "-b7f3b8f6"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if job.ID = c.job; c.other != nil {
				c.other.ID = "undo-j"
				if _, err := client.Put(t.Context(), record.JobKey("undo-j"), c.other); err != nil {
					t.Fatal(err)
				}
			}
			got, err := ID(t.Context(), store.New(client), job, params)
			if err != nil || got != c.want {
				t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
			}
		})
	}
}
