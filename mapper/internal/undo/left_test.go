package undo

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestLeft lists the entities that an undo did not restore, over several pages of its records.
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
		w.undo.Cleaned = true
		w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.undo.Update()); return err })
		if _, _, err := Left(w.Context(), st, w.undo.Ref(), ""); err == nil {
			t.Error("the list of a job that was cleaned up is empty")
		}
	})
}

// TestID checks the default ID of an undo.
func TestID(t *testing.T) {
	long := fmt.Sprintf("%090d", 7)
	job := &record.Job{ID: "j", Incarnation: "0123456789abcdef01234567", Mapper: "m"}
	params := []byte(`{"job":"j"}`)
	for _, c := range []struct {
		name  string
		job   string
		other *record.Job // it has the first ID
		want  string
	}{
		{"nobody has it", "j", nil, "undo-j"},
		{"it has it already", "j", &record.Job{Mapper: Name("m"), Params: params}, "undo-j"},
		{"an aborted one has it", "j", &record.Job{Mapper: Name("m"), Params: params, State: record.Aborted},
			"undo-j-01234567-1"},
		{"another job has it", "j", &record.Job{Mapper: "other", Params: params}, "undo-j-01234567-1"},
		{"that of another job of its ID has it", "j", &record.Job{Mapper: Name("m"), Params: []byte(`{}`)},
			"undo-j-01234567-1"},
		{"a long one is cut off", long, nil, ("undo-" + long)[:67] + "-c1a7d1b7"},
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
			if len(c.job) > 50 { // a hash tells apart IDs that are equal up to there
				got, c.want = got[:67], c.want[:67]
			}
			if err != nil || got != c.want {
				t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
			}
		})
	}
}
