package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// runAndUndo runs a job over 100 accounts, in pages of 10, and undoes it after a time.
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

// ownerOf returns the owner of an account. It returns "" if the account does not exist.
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

// TestUndoDeletedTwice lets two pages of a job delete the same entity. In between, another client
// puts it again. The undo must restore the other client's entity, in whichever order it undoes the
// pages.
func TestUndoDeletedTwice(t *testing.T) {
	t.Parallel()
	for _, deletes := range []string{"user-0000005 user-0000095", "user-0000015 user-0000075"} {
		for _, size := range []int{100, 4, 1}[:testflag.Size(t, 2, 2, 3)] {
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

// TestUndoDeletedBetween lets a page delete an entity. Another client puts it again and deletes it,
// and then another page puts it. The undo must leave it deleted.
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

// deletesAll is an Update that deletes every entity.
var deletesAll = mapper.Update("deletes", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Delete(a.Key)
	return nil
})

// TestUndoDeletedSince lets another client put an entity that a job has deleted, and delete it
// again. The undo must leave the entity deleted, and list it. This must also work hours later, when
// the database can only read whole minutes.
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

// TestUndoMinuteOthers lets another client delete and put entities in the minute before a page
// deletes or changes them all. Hours later, the database can only read whole minutes, so nothing
// tells who deleted a missing entity. The undo must restore only entities that the job has
// certainly deleted, and list its other deletions.
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
							t.Errorf("%s exists, although another client has deleted it", key)
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

// TestUndoBetween lets another client delete one entity and put another, after a page has read its
// keys and before its commit. The function deletes its entities without reading them. The undo must
// restore exactly the entities that the page has deleted.
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

// TestUndoTouched saves entities unchanged, so that they keep their versions, while another client
// puts an entity. The undo must have nothing to restore, and list nothing.
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

// TestUndoByMinute undoes a job hours later, when the database can only read whole minutes.
// Entities that nobody else changed shortly before the job must be restored, and the others must be
// listed.
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
				if plain { // pages that put other entities commit in a transaction
					for range 2 {
						job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account", Start: account(4),
							End: account(5)}, credit{0}, nil)
						if err != nil {
							t.Fatal(err)
						}
						_, err = job.Wait(ctx)
						if time.Sleep(time.Millisecond); err != nil {
							t.Fatal(err)
						}
					}
				}
				time.Sleep(10 * time.Minute)
				before := images(t, w.client, "Account", "Note", "Event")
				mine := &datastore.PropertyList{{Name: "Balance", Value: int64(1)}}
				// accounts that another client changes or puts just before the job
				fresh := []*datastore.Key{account(10), account(n), account(33)}
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
				_, err = job.Wait(ctx)
				if time.Sleep(time.Millisecond); err != nil {
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
							// The job has not written the entity, or has deleted one that did not
							// exist.
							listed = !listed || left[key] != ""
						}
					default:
						listed = left[key] == ""
					}
					if key == account(n).String() && more > 0 {
						// the entity did not exist a whole minute before, so nobody knows that the
						// job has written it
						listed = true
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

// hot is an entity that all pages put.
var hot = datastore.NameKey("Hot", "one", nil)

// TestUndoTwice undoes jobs in which several pages write the same entity. Each entity must become
// what it was before the first page. An undo of the undo must make each entity what the job had
// made of it.
func TestUndoTwice(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	owner := func(owner string) *account { return &account{Owner: owner} }
	at := func(i int) *datastore.Key { return datastore.NameKey("Account", fmt.Sprintf("user-%07d", i), nil) }
	for name, test := range map[string]struct {
		there    bool // whether the entity hot exists before the job
		f        func(i int, a *mapper.Entity[account])
		restored int64
		removed  int64
	}{
		"one is put by all pages": {true, func(_ int, a *mapper.Entity[account]) {
			a.Put(hot, owner(a.Key.Name))
		}, 1, 0},
		"and was not there": {false, func(_ int, a *mapper.Entity[account]) {
			a.Put(hot, owner(a.Key.Name))
		}, 0, 1},
		"one is put and deleted": {true, func(i int, a *mapper.Entity[account]) {
			if i/10%2 == 0 {
				a.Put(hot, owner(a.Key.Name))
			} else {
				a.Delete(hot)
			}
		}, 1, 0},
		"it was not there, and is put and deleted": {false, func(i int, a *mapper.Entity[account]) {
			if i/10%2 == 0 {
				a.Put(hot, owner(a.Key.Name))
			} else {
				a.Delete(hot)
			}
		}, 0, 0},
		"those of other pages": {true, func(i int, a *mapper.Entity[account]) {
			a.Value.Owner = "own"
			a.Put(at((i+100)%200), owner("by "+a.Key.Name))
		}, 200, 0},
		"those of other pages are deleted": {true, func(i int, a *mapper.Entity[account]) {
			if i%2 == 0 {
				a.Value.Owner = "own"
			} else {
				a.Delete(at((i + 99) % 200))
			}
		}, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{4, 100, 1}[:testflag.Size(t, 2, 2, 3)] {
				splitting := mapper.Splitting{}
				if size == 4 { // the undo's ranges do not end where pages of the job end
					splitting = mapper.Splitting{First: 1, FanOut: 2, Bisect: true}
				}
				synctest.Test(t, func(t *testing.T) {
					twice := mapper.Update("twice",
						func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
							var i int
							if _, err := fmt.Sscanf(a.Key.Name, "user-%d", &i); err != nil {
								return err
							}
							test.f(i, a)
							return nil
						})
					w, ctx := newWorld(t, setting{}, twice), t.Context()
					w.putAccounts(names(200))
					if test.there {
						if _, err := w.client.Put(ctx, hot, owner("before")); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Second)
					before := images(t, w.client, "Account", "Hot")
					job, err := twice.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
						&mapper.StartOptions{ID: "done", PageSize: 10, ExpectedWorkers: 4})
					if err != nil {
						t.Fatal(err)
					}
					w.wait(job)
					after := images(t, w.client, "Account", "Hot")
					rehearsal, err := job.Undo(ctx, &mapper.UndoOptions{DryRun: true, PageSize: size})
					if err != nil {
						t.Fatal(err)
					}
					rehearsed := w.wait(rehearsal)
					undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: size, Splitting: splitting})
					if err != nil {
						t.Fatal(err)
					}
					s := w.wait(undo)
					if diff := cmp.Diff(before, images(t, w.client, "Account", "Hot")); diff != "" ||
						s.State != mapper.StateSucceeded {
						t.Errorf("%+v (-want +got)\n%.2000s", s, diff)
					}
					if c := s.Counters; c["restored"] != test.restored || c["removed"] != test.removed ||
						c["left"] != 0 {
						t.Errorf("%v: left %v", c, leftBy(t, undo))
					}
					for _, what := range []string{"restored", "removed", "left"} {
						if !strings.Contains(name, "delete") && s.Counters[what] != rehearsed.Counters[what] {
							t.Errorf("%s: %d, rehearsed %d", what, s.Counters[what], rehearsed.Counters[what])
						}
					}
					redo, err := undo.Undo(ctx, nil)
					if err != nil {
						t.Fatal(err)
					}
					s = w.wait(redo)
					if diff := cmp.Diff(after, images(t, w.client, "Account", "Hot")); diff != "" ||
						s.State != mapper.StateSucceeded || s.Counters["left"] != 0 {
						t.Errorf("the undo of the undo: %+v (-want +got)\n%.2000s", s, diff)
					}
				})
			}
		})
	}
}

// TestUndoMixed lets another client write an entity between two pages of a job that write it, too.
// The undo must restore the other client's entity, in whichever order it undoes the pages. It must
// list the entity once, because the first page's write was not taken back.
func TestUndoMixed(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for seed := range int64(6) {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			mixed := mapper.Update("mixed",
				func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					if a.Key.Name == "user-0000055" {
						if _, err := w.client.Put(ctx, hot, &account{Owner: "somebody else"}); err != nil {
							return err
						}
						return nil
					}
					if a.Key.Name[:11] != "user-000005" {
						a.Put(hot, &account{Owner: a.Key.Name})
					}
					return nil
				})
			w = newWorld(t, setting{queue: few(1)}, mixed)
			ctx := t.Context()
			w.putAccounts(names(100))
			if _, err := w.client.Put(ctx, hot, &account{Owner: "before"}); err != nil {
				t.Fatal(err)
			}
			job, err := mixed.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "done", PageSize: 10, ExpectedWorkers: 1})
			if err != nil {
				t.Fatal(err)
			}
			w.wait(job)
			undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1 + int(seed), ExpectedWorkers: 1})
			if err != nil {
				t.Fatal(err)
			}
			s := w.wait(undo)
			var a account
			if err := w.client.Get(ctx, hot, &a); err != nil || a.Owner != "somebody else" {
				t.Errorf("%+v, %v", a, err)
			}
			if diff := cmp.Diff(map[string]string{hot.String(): "it was changed after the job wrote it"},
				leftBy(t, undo)); diff != "" || s.Counters["left"] != 1 {
				t.Errorf("%v %s", s.Counters, diff)
			}
		})
	}
}

// TestUndoTwiceByMinute undoes pages that are more than an hour old. An entity that another page
// may have put before must stay unchanged, and be listed.
func TestUndoTwiceByMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		twice := mapper.Update("twice", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Value.Owner = "own"
			if a.Key.Name == "user-0000000" {
				a.Put(datastore.NameKey("Account", "user-0000099", nil), &account{Owner: "by another page"})
			}
			return nil
		})
		w, ctx := newWorld(t, setting{emulator: emulator.Options{PointInTimeRecovery: true}}, twice), t.Context()
		w.putAccounts(names(100))
		time.Sleep(10 * time.Minute)
		before := images(t, w.client, "Account")
		job, err := twice.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done", PageSize: 10, ExpectedWorkers: 1,
				Rate: mapper.Rate{EntitiesPerSecond: 0.1}})
		if err != nil {
			job, err = twice.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "done", PageSize: 10, ExpectedWorkers: 1})
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.wait(job)
		after := images(t, w.client, "Account")
		time.Sleep(2 * time.Hour)
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, left := w.wait(undo), leftBy(t, undo)
		want := maps.Clone(before)
		twiceWritten := datastore.NameKey("Account", "user-0000099", nil).String()
		want[twiceWritten] = after[twiceWritten]
		if diff := cmp.Diff(want, images(t, w.client, "Account")); diff != "" {
			t.Errorf("%v (-want +got)\n%.2000s", s.Counters, diff)
		}
		if left[twiceWritten] == "" || len(left) != 1 {
			t.Errorf("left %v", left)
		}
	})
}

// TestUndoAlone undoes a job in which entities failed at first, and were retried alone.
func TestUndoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		fails := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if strings.HasSuffix(a.Key.Name, "7") && calls.Add(1) <= 10 {
				return errors.New("at first")
			}
			a.Value.Owner = "set"
			return nil
		})
		w, ctx := newWorld(t, setting{}, fails), t.Context()
		w.putAccounts(names(100))
		before := images(t, w.client, "Account")
		job, err := fails.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done", PageSize: 100, ExpectedWorkers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Failures > 0 || calls.Load() <= 10 || w.unrestored() != 100 {
			t.Fatalf("status %+v", s)
		}
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(undo); s.Counters["restored"] != 100 {
			t.Errorf("%v", s.Counters)
		}
		if diff := cmp.Diff(before, images(t, w.client, "Account")); diff != "" {
			t.Errorf("%.2000s", diff)
		}
	})
}

// TestUndoBatches undoes a page in several commits. Meanwhile calls fail, and another client writes
// between the undo's reads and commits. The undo's report must be exact, and the other client's
// writes must stay. An undo of the undo must restore everything that the job had written.
func TestUndoBatches(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	deletes := mapper.Update("deletes",
		func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
			if strings.HasSuffix(e.Key.Name, "5") {
				e.Value = append(e.Value, datastore.Property{Name: "More", Value: true})
				e.Put(datastore.NameKey("Added", e.Key.Name, nil), &account{Owner: "added"})
			} else {
				e.Delete(e.Key)
			}
			return nil
		})
	// the number of the undo's commit that gets no answer, or that another client is faster than
	for fails := range 12 {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{}, deletes), t.Context()
			for i := range 40 {
				if _, err := w.client.Put(ctx, datastore.NameKey("Big", fmt.Sprintf("%03d", i), nil),
					&datastore.PropertyList{{Name: "B", Value: make([]byte, 1000), NoIndex: true}}); err != nil {
					t.Fatal(err)
				}
			}
			before := images(t, w.client, "Big", "Added")
			job, err := deletes.Start(ctx, w.engine, mapper.Query{Kind: "Big"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "deletes", ExpectedWorkers: 1, PageSize: 40})
			if err != nil {
				t.Fatal(err)
			}
			w.wait(job)
			after := images(t, w.client, "Big", "Added")
			commits := 0
			mine := ""
			e := w.beside(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				c, ok := req.(*datastorepb.CommitRequest)
				var first *datastorepb.Key
				if ok {
					for _, key := range keysOfCommit(c) {
						if kind := key.Path[0].Kind; kind == "Added" || kind == "Big" &&
							(first == nil || strings.HasSuffix(key.Path[0].GetName(), "5")) {
							first = key
						}
					}
				}
				if first == nil {
					return invoker(ctx, method, req, reply, cc, opts...)
				}
				commits++
				if commits != 1+fails/2 {
					return invoker(ctx, method, req, reply, cc, opts...)
				}
				if fails%2 == 0 { // the commit takes effect, and its answer is lost
					_ = invoker(ctx, method, req, reply, cc, opts...)
					return errors.New("the connection was lost")
				}
				key := datastore.NameKey(first.Path[0].Kind, first.Path[0].GetName(), nil)
				if _, err := w.client.Put(t.Context(), key, &account{Owner: "mine"}); err != nil {
					t.Error(err)
				}
				mine = key.String()
				return invoker(ctx, method, req, reply, cc, opts...)
			}, deletes)
			bridge.UndoMost(e, 16000)
			w.handler = e.Handler()
			undo, err := e.Job("deletes").Undo(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			s, left := w.wait(undo), leftBy(t, undo)
			w.handler = w.engine.Handler()
			bridge.UndoMost(w.engine, 16000)
			want := maps.Clone(before)
			now := images(t, w.client, "Big", "Added")
			restored, removed := int64(40), int64(4)
			if mine != "" {
				want[mine] = now[mine]
				if strings.Contains(mine, "Big") {
					restored--
				} else {
					removed--
				}
				if !strings.Contains(now[mine], "mine") || left[mine] == "" {
					t.Errorf("%d: %s of another client is listed as %q: %.100s", fails, mine, left[mine], now[mine])
				}
			}
			if c := s.Counters; c["restored"] != restored || c["removed"] != removed || c["left"] != int64(len(left)) ||
				mine == "" && len(left) > 0 || commits < 4 {
				t.Errorf("%d: after %d commits: %v, want %d restored and %d removed; left %v", fails, commits, c,
					restored, removed, left)
			}
			if diff := cmp.Diff(want, now); diff != "" {
				t.Errorf("%d (-want +got)\n%.2000s", fails, diff)
			}
			if n := w.count(record.BatchKind, "page"); n < 2 {
				t.Errorf("%d: %d batches", fails, n)
			}
			redo, err := w.engine.Job(undo.ID).Undo(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			again := w.wait(redo)
			wantAfter := maps.Clone(after)
			if mine != "" {
				wantAfter[mine] = now[mine]
			}
			if diff := cmp.Diff(wantAfter, images(t, w.client, "Big", "Added")); diff != "" ||
				again.Counters["left"] > 0 {
				t.Errorf("%d: the undo of the undo: %v (-want +got)\n%.2000s", fails, again.Counters, diff)
			}

			// A clean-up of the undo must also delete the records of these commits.
			if err := undo.CleanUp(ctx, &mapper.CleanUpOptions{ExpireAfter: time.Hour}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if all, expire := w.count(record.BatchKind, "page"), w.count(record.BatchKind, "expires"); all != expire ||
				all == 0 {
				t.Errorf("%d: %d of %d batches expire", fails, expire, all)
			}
			if err := undo.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if n := w.count(record.BatchKind, "page"); n > 0 {
				t.Errorf("%d: %d batches are there still", fails, n)
			}
		})
	}
}

// TestUndoBatchesOutlived undoes a page in batches. After some of them no commit succeeds until the
// database serves only whole minutes of the page's time. Entities that a batch has restored must
// not be listed. An entity that others wrote within the minute before the page must stay unchanged,
// unless the undo can tell that the page wrote it.
func TestUndoBatchesOutlived(t *testing.T) {
	t.Parallel()
	adds := mapper.Update("adds", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		e.Value.Balance++
		e.Put(datastore.NameKey("Added", e.Key.Name, nil), &account{Owner: "added"})
		return nil
	})
	raises := mapper.Update("raises", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		e.Value.Balance += 7
		return nil
	})
	deletes := mapper.Update("deletes", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		e.Delete(e.Key)
		return nil
	})
	const n = 20
	// At the last whole minute, the query does not find the first three accounts.
	all := names(n + 1)
	late := func(w *world) { w.putAccounts(all[:3]) }
	for _, c := range []struct {
		name    string
		m       *mapper.Mapper[mapper.NoParams]
		early   []*datastore.Key // accounts that are put minutes before the job
		just    func(*world)     // done within the minute before the job
		batches int              // number of batches that are committed
		left    int
	}{
		{"all batches are committed", adds, all[3:n], late, 1000, 0},
		{"some batches are committed", raises, all[3:n], late, 5, 0},
		{"others delete an account just before", deletes, all, func(w *world) {
			w.must(w.client.Delete(w.Context(), all[n]))
		}, n, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{emulator: emulator.Options{PointInTimeRecovery: true}}, c.m), t.Context()
				w.putAccounts(c.early)
				time.Sleep(10*time.Minute + 20*time.Second)
				c.just(w)
				before := images(t, w.client, "Account", "Added")
				job, err := c.m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{ID: "job", ExpectedWorkers: 1, PageSize: 100})
				if err != nil {
					t.Fatal(err)
				}
				w.wait(job)
				done := time.Now()
				time.Sleep(50 * time.Minute)
				batches := 0
				e := w.beside(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
					invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if r, ok := req.(*datastorepb.CommitRequest); ok && time.Since(done) < 63*time.Minute {
						batch := slices.ContainsFunc(keysOfCommit(r), func(key *datastorepb.Key) bool {
							return key.Path[0].Kind == record.BatchKind
						})
						switch {
						case batch && batches < c.batches:
							batches++
						case batches > 0:
							return errors.New("the database is down")
						}
					}
					return invoker(ctx, method, req, reply, cc, opts...)
				}, c.m)
				bridge.UndoMost(e, 1)
				w.handler = e.Handler()
				undo, err := e.Job("job").Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				s, left := w.wait(undo), leftBy(t, undo)
				w.handler = w.engine.Handler()
				if got := s.Counters; got["restored"] != n || len(left) != c.left || got["left"] != int64(c.left) ||
					batches == 0 {
					t.Errorf("after %d batches: %v, left %v", batches, got, left)
				}
				if diff := cmp.Diff(before, images(t, w.client, "Account", "Added")); diff != "" {
					t.Errorf("(-want +got)\n%.2000s", diff)
				}
			})
		})
	}
}
