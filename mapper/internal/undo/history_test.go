package undo

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestCloser checks whether a record says that its page wrote an entity. The page's range is [1,
// 10).
func TestCloser(t *testing.T) {
	at := time.Unix(1000, 0)
	all := &undolog.Wrote{Own: undolog.KeysOf(keysOf(1, 2), true)}
	some := &undolog.Wrote{Own: undolog.KeysOf(keysOf(1), false)}
	others := &undolog.Wrote{Others: keysOf(2, 51)}
	for _, c := range []struct {
		name    string
		state   record.RangeState
		failed  string
		since   time.Duration // when the record was last changed, counted from the page's commit
		wrote   *undolog.Wrote
		id      int64
		sharded bool
		want    bool
	}{
		{"all of the page", record.Done, "", 0, all, 2, false, true},
		{"all of the page, but not this one", record.Done, "", 0, all, 51, false, false},
		{"all of a page that is no range of keys", record.Done, "", 0, all, 51, true, true},
		{"one of the page", record.Done, "", 0, some, 1, false, true},
		{"another one of the page", record.Done, "", 0, some, 2, false, false},
		{"another one of a page that is no range of keys", record.Done, "", 0, some, 2, true, false},
		{"one of others", record.Done, "", 0, others, 51, false, true},
		{"none of others", record.Done, "", 0, others, 52, false, false},
		{"none of the page", record.Done, "", 0, others, 1, false, false},
		{"nothing", record.Done, "", 0, new(undolog.Wrote), 1, false, false},
		{"there was no room for all", record.Done, "", 0, &undolog.Wrote{Lost: 1}, 1, false, true},
		{"an older build did not say", record.Done, "", 0, nil, 1, false, true},
		{"its entity has failed", record.Done, "j", 0, all, 1, false, false},
		{"it was abandoned", record.Abandoned, "", 0, all, 1, false, false},
		{"somebody changed the record later", record.Done, "", time.Second, others, 1, false, true},
		{"somebody changed it back to pending", record.Pending, "", time.Second, nil, 1, false, true},
	} {
		is := closer{&record.Range{State: c.state, Failed: c.failed, Start: keyspace.At(keyOf(1)),
			End: keyspace.At(keyOf(10))}, at.Add(c.since), c.wrote}
		if got := is.has(keyOf(c.id), at, c.sharded); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestBegun checks from which time on the job may have written: from the creation of its record on,
// by the database's clock. The clock of the process that started the job may be wrong.
func TestBegun(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, 0, time.Hour} {
		inWorld(t, 1, nil, func(w *world) {
			w.restart(w.job)
			created := time.Now()
			w.job.Created = created.Add(off)
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.job.Update()); return err })
			u := past{w.undoer()}
			if _, begun, err := u.load(w.Context()); err != nil || !begun.Equal(created) {
				t.Errorf("%v: created %v after its creation, %v", off, begun.Sub(created), err)
			}
			if n := w.calls(func() {
				for after, want := range map[time.Duration]bool{0: true, time.Microsecond: false} {
					if got, err := u.beforeJob(w.Context(), created.Add(after)); err != nil || got != want {
						t.Errorf("%v: %v after its creation, before the job: %v, %v", off, after, got, err)
					}
				}
			}); n != 0 {
				t.Errorf("what is known takes %d calls", n)
			}
		})
	}
}

// TestGone undoes a page while the job is cleaned up, or while other records of the job are
// damaged.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world)
		want string
	}{
		{"the job's record is gone", func(w *world) {
			w.commit(func(tx *datastore.Transaction) error { return tx.Delete(record.JobKey("j")) })
		}, errGone.Error()},
		{"an earlier page's record is gone", func(w *world) {
			w.commit(func(tx *datastore.Transaction) error { return tx.Delete(w.ranges[0].Key()) })
		}, errGone.Error()},
		{"the page's record is damaged", func(w *world) {
			w.ranges[1].Wrote = []byte("\x00x")
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.ranges[1].Update()); return err })
		}, "what a page has written"},
		{"an earlier page's record is damaged", func(w *world) {
			w.ranges[0].Wrote = []byte("\x00x")
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.ranges[0].Update()); return err })
		}, "what a page has written"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 2, []int64{51}, func(w *world) {
				w.page(0, to{51: 7})
				w.page(1, to{51: 8})
				c.then(w)
				if _, err := w.run(1); !fault.IsPermanent(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
			})
		})
	}
}

// TestPatience checks that an undo whose context ends stops waiting, while another page reads
// something about the job.
func TestPatience(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		at := time.Now()
		busy := &closers{turn: semaphore.NewWeighted(1), read: true}
		for name, call := range map[string]func(ctx context.Context, u past) error{
			"the job":    func(ctx context.Context, u past) error { _, _, err := u.load(ctx); return err },
			"its ranges": func(ctx context.Context, u past) error { _, err := u.closersOf(ctx, at); return err },
			"ranges that another page reads": func(ctx context.Context, u past) error {
				u.history.turn.Release(1)
				_ = busy.turn.Acquire(w.Context(), 1)
				u.history.closers[at] = busy
				_, err := u.closersOf(ctx, at)
				return err
			},
		} {
			u := past{w.undoer()}
			u.history.job, u.history.begun = w.job, at // the values are known, but another page holds the semaphore
			_ = u.history.turn.Acquire(w.Context(), 1)
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			if err := call(ctx, u); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			if u.history.turn.TryAcquire(1) != (u.history.closers[at] == busy) {
				t.Errorf("%s: the turn of another page was taken", name)
			}
		}
	})
}

// TestOften undoes the last of many pages that wrote two entities. It must restore the entity that
// maxWrites pages wrote, and leave the entity that one more page wrote.
func TestOften(t *testing.T) {
	testflag.Sequential(t)
	inWorld(t, 1, []int64{51, 52}, func(w *world) {
		for n := range maxWrites + 1 {
			w.ranges = append(w.ranges, w.another(n+1)) // the range of the next page, which this page's commit adds
			w.with = []*datastore.Mutation{w.ranges[n+1].Insert()}
			write := to{51: int64(n)}
			if n > 0 {
				write[52] = int64(n)
			}
			w.page(n, write)
		}
		w.wantUndo(maxWrites, "52 becomes 52", "51 stays: "+whyOften)
	})
}

// TestManyOpen undoes a page that wrote three entities after other pages. When these pages
// committed, the number of open ranges was about maxOpen, the limit.
func TestManyOpen(t *testing.T) {
	inWorld(t, 5, []int64{51, 52, 53}, func(w *world) {
		open := 5
		opens := func(n int) { // adds ranges until n are open
			for open < n {
				w.commit(func(tx *datastore.Transaction) error {
					for range min(400, n-open) {
						open++
						if _, err := tx.Mutate(w.another(open).Insert()); err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		opens(maxOpen)
		w.with = []*datastore.Mutation{w.another(10001).Insert()}
		w.page(0, to{51: 7}) // 5,000 ranges are open before and after this commit
		w.with = []*datastore.Mutation{w.another(10002).Insert(), w.another(10003).Insert()}
		w.page(1, to{52: 7}) // 5,000 are open before this commit, and 5,001 after
		w.page(2, to{53: 7}) // 5,001 are open before this commit, and 5,000 after
		w.page(3, to{51: 8, 52: 8, 53: 8})
		w.wantUndo(3, "51 becomes 51", "52 stays: "+whyOpen, "53 stays: "+whyOpen)
	})
}

// TestParallel checks that a page's undo reads the past of many entities at the same time, but does
// not make more calls at a time than other pages.
func TestParallel(t *testing.T) {
	inWorld(t, 2, nil, func(w *world) {
		first, second := to{}, to{}
		for id := range int64(100) {
			first[51+id], second[51+id] = 7, 8
		}
		w.page(0, first)
		w.page(1, second)
		var now, most atomic.Int64
		w.taps(func(_, _ any, pass func() error) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Millisecond)
			return pass()
		})
		e, err := w.run(1)
		if err != nil || len(e.Mutations) != 100 {
			t.Errorf("%+v, %v", e, err)
		}
		if most.Load() != source.Parallel {
			t.Errorf("%d calls at a time, want %d", most.Load(), source.Parallel)
		}
	})
}

// TestTaken undoes two pages in one delivery. Both deleted an entity, which another client had put
// again in between. If the entity had the same state before both, only one of them may restore it.
func TestTaken(t *testing.T) {
	for n, want := range map[int64][]string{51: {"51 becomes 51", ""}, 6: {"51 becomes 51", "51 becomes 6"}} {
		inWorld(t, 2, []int64{51}, func(w *world) {
			w.page(0, to{51: gone})
			w.somebody(to{51: n})
			w.page(1, to{51: gone})
			w.end()
			time.Sleep(5 * time.Minute)
			call := w.function()
			for range 2 { // a second attempt on the same page restores it, too
				for i, want := range want {
					e, err := call(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[i].Key(), nil)
					if err != nil || says(e) != want {
						t.Errorf("others put %d: page %d: %s, %v, want %s", n, i, says(e), err, want)
					}
				}
			}
		})
	}
}

// TestUnreadable undoes pages in databases that do not return what an undo needs, such as versions.
func TestUnreadable(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(r *pb.EntityResult)
		want   error
	}{
		{"no versions", func(r *pb.EntityResult) { r.Version = 0 }, errNoVersions},
		{"no times", func(r *pb.EntityResult) { r.UpdateTime = nil }, errNoTime},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, to{1: 7})
			w.taps(func(_, resp any, pass func() error) error {
				err := pass()
				if resp, ok := resp.(*pb.LookupResponse); ok {
					for _, r := range resp.GetFound() {
						c.answer(r)
					}
				}
				return err
			})
			if _, err := w.run(0); !errors.Is(err, c.want) || !fault.IsPermanent(err) {
				t.Errorf("%s: %v", c.name, err)
			}
			if err := Check(w.Context(), w.client, w.job); !errors.Is(err, record.ErrState) ||
				!strings.Contains(err.Error(), c.want.Error()) {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
}
