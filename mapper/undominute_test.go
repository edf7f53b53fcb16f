package mapper_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// TestUndoByMinute undoes a job hours later, where the database keeps whole minutes for that: what
// was left alone for longer than that before the job is restored, and the rest is listed.
func TestUndoByMinute(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"optimistic": false, "transactions": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{emulator: emulator.Options{PointInTimeRecovery: true}}, meddler),
					t.Context()
				const n = 100
				putMeddled(t, w.client, n)
				account := func(i int) *datastore.Key {
					return datastore.NameKey("Account", fmt.Sprintf("a-%05d", i), nil)
				}
				if plain { // pages that put others are transactions
					for range 2 {
						job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account", Start: account(4),
							End: account(5)}, credit{0}, nil)
						if err != nil {
							t.Fatal(err)
						}
						if _, err := job.Wait(ctx); err != nil {
							t.Fatal(err)
						}
					}
				}
				time.Sleep(10 * time.Minute)
				before := images(t, w.client, "Account", "Note", "Event")
				mine := &datastore.PropertyList{{Name: "Balance", Value: int64(1)}}
				fresh := []*datastore.Key{account(10), account(n), account(33)} // changed, or put, just before the job
				for _, key := range fresh {
					if _, err := w.client.Put(ctx, key, mine); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(20 * time.Second)
				between := images(t, w.client, "Note")
				job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{7},
					&mapper.StartOptions{ID: "done", PageSize: 30, FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				after := images(t, w.client, "Account", "Note", "Event")
				time.Sleep(time.Hour)
				other := account(21)
				if _, err := w.client.Put(ctx, other, mine); err != nil {
					t.Fatal(err)
				}
				changed := images(t, w.client, "Account")[other.String()]
				time.Sleep(3 * time.Hour)
				undo, err := job.Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				s := w.wait(undo)
				got, left := images(t, w.client, "Account", "Note", "Event"), make(map[string]string)
				more := int64(0)
				for cursor := ""; ; {
					some, next, err := undo.NotUndonePage(ctx, cursor)
					if err != nil {
						t.Fatal(err)
					}
					for _, l := range some {
						if l.Key == nil {
							more++
						} else {
							left[l.Key.String()] = l.Reason
						}
					}
					if cursor = next; next == "" {
						break
					}
				}
				for key, image := range got {
					want, listed := before[key], strings.Contains(left[key], "whole minutes are kept")
					switch {
					case key == other.String():
						want, listed = changed, !listed && left[key] != ""
					case key == account(10).String(), key == account(n).String():
						want = after[key]
					case strings.HasPrefix(key, "/Note"), strings.Contains(key, "Event"):
						want = after[key]
						if between[key] == after[key] {
							// the job has not written it, or deleted what was not there
							listed = !listed || left[key] != ""
						}
					default:
						listed = left[key] == ""
					}
					if key == account(n).String() && more > 0 {
						listed = true // it was not there a minute before, so nobody knows its key
					}
					if image != want || !listed {
						t.Errorf("%s is listed as %q: %s", key, left[key], cmp.Diff(want, image))
					}
				}
				if got[account(33).String()] != "" {
					t.Error("what was deleted is there again, though it was changed just before")
				}
				if got[account(23).String()] == "" || s.Counters["restored"] == 0 || more != 1 {
					t.Errorf("%v, %d more", s.Counters, more)
				}
			})
		})
	}
}
