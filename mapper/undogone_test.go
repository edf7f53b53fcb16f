package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// runAndUndo runs a job over 100 accounts, with pages of 10, and undoes it after a time.
func runAndUndo(
	w *world, m *mapper.Mapper[mapper.NoParams], q mapper.Query, pageSize, size int, after func(),
) (*mapper.Job, *mapper.Status) {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, q, mapper.NoParams{},
		&mapper.StartOptions{ID: "done", PageSize: pageSize,
			ExpectedWorkers: 1})
	if err != nil {
		w.Fatal(err)
	}
	w.wait(job)
	after()
	undo, err := job.Undo(w.Context(), &mapper.UndoOptions{PageSize: size, ExpectedWorkers: 1})
	if err != nil {
		w.Fatal(err)
	}
	return undo, w.wait(undo)
}

// ownerOf returns whose an account is: nobody's, if it is not there.
func ownerOf(w *world, key *datastore.Key) string {
	w.Helper()
	var a account
	if err := w.client.Get(w.Context(), key, &a); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		w.Fatal(err)
	}
	return a.Owner
}

func (w *world) putOwner(key *datastore.Key, owner string) {
	w.Helper()
	if _, err := w.client.Put(w.Context(), key, &account{Owner: owner}); err != nil {
		w.Fatal(err)
	}
}

// TestUndoDeletedTwice has two pages delete one entity, which somebody else puts again in between:
// the undo goes back to his, in whatever order it comes to the pages.
func TestUndoDeletedTwice(t *testing.T) {
	t.Parallel()
	for _, deletes := range []string{"user-0000005 user-0000095", "user-0000015 user-0000075"} {
		for _, size := range []int{1, 4, 100} {
			synctest.Test(t, func(t *testing.T) {
				var w *world
				m := mapper.Update("mixed",
					func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
						switch {
						case strings.Contains(deletes, a.Key.Name):
							a.Delete(hot)
						case a.Key.Name == "user-0000055":
							w.putOwner(hot, "somebody else")
						}
						return nil
					})
				w = newWorld(t, setting{queue: few(1)}, m)
				w.putAccounts(names(100))
				w.putOwner(hot, "before")
				time.Sleep(time.Second)
				undo, s := runAndUndo(w, m, mapper.Query{Kind: "Account"}, 10, size, func() {})
				if got := ownerOf(w, hot); got != "somebody else" || s.State != mapper.StateSucceeded {
					t.Errorf("size %d: it is %q; %s %v, left %v", size, got, s.State, s.Counters, leftBy(t, undo))
				}
			})
		}
	}
}

// TestUndoDeletedBetween has a page delete an entity, which somebody else puts again and deletes
// for good before another page puts it: the undo leaves it deleted.
func TestUndoDeletedBetween(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		m := mapper.Update("mixed", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			switch a.Key.Name {
			case "user-0000005":
				time.Sleep(time.Second)
				a.Delete(hot)
			case "user-0000025":
				time.Sleep(15 * time.Second)
				w.putOwner(hot, "somebody else")
			case "user-0000035":
				time.Sleep(100 * time.Millisecond)
				return w.client.Delete(ctx, hot)
			case "user-0000085":
				a.Put(hot, &account{Owner: "job"})
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(names(100))
		w.putOwner(hot, "before")
		time.Sleep(time.Second)
		undo, s := runAndUndo(w, m, mapper.Query{Kind: "Account"}, 10, 4, func() {})
		if got := ownerOf(w, hot); got != "" || len(leftBy(t, undo)) != 1 {
			t.Errorf("it is %q: %v, left %v", got, s.Counters, leftBy(t, undo))
		}
	})
}

// deletesAll is a mapper that deletes what it gets.
var deletesAll = mapper.Update("deletes", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Delete(a.Key)
	return nil
})

// TestUndoDeletedSince has somebody put an entity again that a job has deleted, and delete it: that
// stands, and is listed. So it is by minutes.
func TestUndoDeletedSince(t *testing.T) {
	t.Parallel()
	for _, minutes := range []time.Duration{1, 300} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{emulator: emulator.Options{PointInTimeRecovery: true}}, deletesAll)
			w.putAccounts(names(20))
			time.Sleep(10 * time.Minute)
			key := names(20)[3]
			undo, s := runAndUndo(w, deletesAll, mapper.Query{Kind: "Account"}, 10, 4, func() {
				w.putOwner(key, "somebody else")
				time.Sleep(10 * minutes * time.Minute)
				if err := w.client.Delete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				time.Sleep(minutes * time.Minute)
			})
			why := leftBy(t, undo)[key.String()]
			if got := ownerOf(w, key); got != "" || why == "" || s.Counters["restored"] != 19 {
				t.Errorf("%d: it is %q, listed as %q: %v", minutes, got, why, s.Counters)
			}
		})
	}
}

// TestUndoMinuteOthers has somebody delete entities, and put as many, within the minute before a
// page that deletes or changes them all. Hours later nothing tells whose an entity was that is not
// there: none is restored that the job has not deleted, and what it has deleted is listed.
func TestUndoMinuteOthers(t *testing.T) {
	t.Parallel()
	changes := mapper.Update("changes", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Owner = "job"
		return nil
	})
	for _, test := range []struct{ gone, fresh int }{{1, 1}, {2, 1}, {1, 2}, {0, 0}} {
		for _, m := range []*mapper.Mapper[mapper.NoParams]{deletesAll, changes} {
			t.Run(fmt.Sprint(m.Name(), test), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{emulator: emulator.Options{PointInTimeRecovery: true}}, m)
					all := names(100)
					w.putAccounts(all)
					time.Sleep(10 * time.Minute)
					time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(80 * time.Second)))
					for _, key := range all[5 : 5+test.gone] {
						if err := w.client.Delete(t.Context(), key); err != nil {
							t.Fatal(err)
						}
					}
					for i := range test.fresh {
						w.putOwner(datastore.NameKey("Account", fmt.Sprint("user-0000005x", i), nil), "fresh")
					}
					time.Sleep(10 * time.Second)
					undo, s := runAndUndo(w, m, mapper.Query{Kind: "Account"}, 200, 4, func() {
						time.Sleep(2 * time.Hour)
					})
					left := leftBy(t, undo)
					for i, key := range all {
						got, gone := ownerOf(w, key), i >= 5 && i < 5+test.gone
						if gone && got != "" {
							t.Errorf("%s, which somebody else has deleted, is there again", key)
						}
						if was := fmt.Sprint("owner ", i); !gone && got != was && left[key.String()] == "" {
							t.Errorf("%s is neither restored nor listed: it is %q", key, got)
						}
					}
					if _, some := left[""]; test.fresh > 0 != some && test != (struct{ gone, fresh int }{2, 1}) {
						t.Errorf("%v: left %v", s.Counters, left)
					}
					if kept := s.Counters["left"]; test.gone+test.fresh == 0 &&
						(kept > 0 || s.Counters["restored"] != 100) || m == changes && s.Counters["restored"] < 98 {
						t.Errorf("%v: left %v", s.Counters, left)
					}
				})
			})
		}
	}
}

// TestUndoBetween has somebody delete one entity and put another one between the reading of a
// page's keys and its commit, which deletes without having read: the undo restores what the page
// has deleted, and nothing else.
func TestUndoBetween(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		gone, fresh := names(20)[7], datastore.NameKey("Account", "user-0000005x", nil)
		m := mapper.Update("mixed",
			func(ctx context.Context, a *mapper.Entity[mapper.NoParams], _ mapper.NoParams) error {
				if a.Key.Name == "user-0000005" {
					w.putOwner(fresh, "somebody else")
					if err := w.client.Delete(ctx, gone); err != nil {
						return err
					}
				}
				a.Delete(a.Key)
				return nil
			})
		w = newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(names(20))
		time.Sleep(time.Second)
		undo, s := runAndUndo(w, m, mapper.Query{Kind: "Account", KeysOnly: true}, 10, 4, func() {})
		if got := ownerOf(w, gone); got != "" || ownerOf(w, fresh) != "somebody else" || s.Counters["restored"] != 19 ||
			s.Counters["left"] != 0 {
			t.Errorf("%q, %q, %v: left %v", got, ownerOf(w, fresh), s.Counters, leftBy(t, undo))
		}
	})
}

// TestUndoTouched saves entities as they are, which changes no version, while somebody else puts
// one beside them: there is nothing to restore, and nothing is left.
func TestUndoTouched(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			m := mapper.Update("touches", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if a.Key.Name == "user-0000005" {
					w.putOwner(datastore.NameKey("Account", "user-0000005x", nil), "somebody else")
				}
				if all || a.Key.Name != "user-0000003" {
					a.Touch()
				}
				return nil
			})
			w = newWorld(t, setting{queue: few(1)}, m)
			w.putAccounts(names(20))
			time.Sleep(time.Second)
			undo, s := runAndUndo(w, m, mapper.Query{Kind: "Account"}, 10, 4, func() {})
			if left := leftBy(t, undo); len(left) > 0 || s.Counters["left"] != 0 || s.Counters["restored"] != 0 {
				t.Errorf("all %v: %v: left %v", all, s.Counters, left)
			}
		})
	}
}
