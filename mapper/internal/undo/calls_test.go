package undo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// A failing is an interceptor of Datastore calls that makes one call fail: the one after a number
// of others.
type failing struct {
	world *world
	after int
	lose  bool // whether the call takes effect, and only its answer is lost
	calls int
}

func (f *failing) tap(req, _ any, pass func() error) error {
	f.world.mu.Lock()
	now := f.calls == f.after
	f.calls++
	f.world.mu.Unlock()
	if !now {
		return pass()
	}
	if f.lose {
		if err := pass(); err != nil {
			return err
		}
	}
	code := codes.Internal
	if at := readTime(req); f.after%2 == 0 && !at.IsZero() && time.Since(at) < 50*time.Minute {
		code = codes.FailedPrecondition // the code for a past that is not kept, but this one is
	}
	return status.Error(code, "injected")
}

// fail runs f, and fails the call of f that follows after others. It reports whether f has made
// this call.
func (w *world) fail(after int, lose bool, f func()) (failed bool) {
	tap := &failing{world: w, after: after, lose: lose}
	w.taps(tap.tap)
	f()
	w.taps(nil)
	return tap.calls > after
}

// TestStories undoes a page in each story, and checks the result and the number of calls.
func TestStories(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
				if s.job(w); w.undo.Created.IsZero() {
					w.begin()
				}
				if n := w.calls(func() { w.wantUndo(s.page, strings.Split(s.says, "\n")...) }); n != s.calls {
					t.Errorf("%d calls, want %d", n, s.calls)
				}
			})
		})
	}
}

// TestFailingCalls fails each call of an undo's page, one at a time. The page must fail with a
// temporary error. Its next attempt must give the same result as without the failure, in the same
// delivery and in another one. In a usual run, every second of these calls fails.
func TestFailingCalls(t *testing.T) {
	testflag.Sequential(t)
	for _, p := range stories {
		t.Run(p.name, func(t *testing.T) {
			inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
				p.job(w)
				// The search for a deletion makes many similar calls, so some are skipped.
				some := testflag.Part(t, 2)
				for n, after := 0, 0; ; n, after = n+1, after+1+after/3 {
					if !some(n) {
						continue
					}
					call, err := w.function(), error(nil)
					attempt := func() (string, error) {
						e, err := call(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[p.page].Key(), nil)
						if err != nil {
							return "", err
						}
						return says(e), nil
					}
					if !w.fail(after, false, func() { _, err = attempt() }) {
						break
					}
					if err == nil || !strings.Contains(err.Error(), "injected") || fault.IsPermanent(err) ||
						fault.IsFatal(err) {
						t.Errorf("call %d fails: %v", after, err)
					}
					if got, err := attempt(); err != nil || got != p.says {
						t.Errorf("after the failure of call %d: %s, %v", after, got, err)
					}
				}
			})
		})
	}
}

// runUnkept undoes a page, and refuses one of its reads of the past: the one that follows after
// others. It returns the moment of the refused read, or zero if the page makes no such read.
func (w *world) runUnkept(page, after int) (e *function.Effect, refused time.Time, err error) {
	reads := 0
	w.taps(func(req, _ any, pass func() error) error {
		at := readTime(req)
		if at.IsZero() {
			return pass()
		}
		w.mu.Lock()
		reads++
		now := reads == after+1
		if now {
			refused = at
		}
		w.mu.Unlock()
		if now {
			return status.Error(codes.InvalidArgument, "the past is not kept")
		}
		return pass()
	})
	defer w.taps(nil)
	e, err = w.run(page)
	return e, refused, err
}

// TestUnkept refuses each read of the past, one at a time, as a database does that no longer keeps
// this past. Each entity must get the same state as without the refusal, or stay and be listed, or
// the undo of the page must fail.
func TestUnkept(t *testing.T) {
	testflag.Sequential(t)
	for _, s := range stories {
		// an expected difference: one refused look may miss what others did, and an earlier page's
		// deletion counts if its past is kept
		if strings.Contains(s.name, "and deleted by others") || strings.Contains(s.name, "deleted an hour before") {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
				s.job(w)
				_, stored, err := w.undoer().record(w.Context(), w.ranges[s.page].Key())
				if err != nil {
					t.Fatal(err)
				}
				page := commit{at: stored.UpdateTime.AsTime()}
				all := strings.Split(s.says, "\n")
				for after := 0; ; after += 1 + after/12 {
					e, refused, err := w.runUnkept(s.page, after)
					if refused.IsZero() {
						break
					}
					// The undo fails only if the states just before and after the commit, or of a
					// whole minute, are not kept.
					if err != nil {
						if !fault.IsPermanent(err) || !strings.Contains(err.Error(), "the past is not kept") ||
							refused.After(page.at) || refused.Before(page.before()) && !refused.Equal(page.minute()) {
							t.Errorf("read %d is refused, %v after the page: %v", after, refused.Sub(page.at), err)
						}
						continue
					}
					for line := range strings.Lines(says(e)) {
						line = strings.TrimSpace(line)
						if !slices.Contains(all, line) && !strings.Contains(line, " stays: ") {
							t.Errorf("read %d is refused: %s, want %s", after, line, s.says)
						}
					}
					for _, want := range all {
						id, _, _ := strings.Cut(want, " ")
						if !strings.Contains("\n"+says(e), "\n"+id) {
							t.Errorf("read %d is refused: nothing about %s, want %s", after, id, want)
						}
					}
				}
			})
		})
	}
}

// TestOldPast undoes a page of a job that has run for hours, in processes with different clocks.
// The time until which the undo follows the past back has to be the database's.
func TestOldPast(t *testing.T) {
	for _, off := range []time.Duration{10 * time.Minute, -40 * time.Second} { // negative: the process' clock is ahead
		inWorld(t, 3, []int64{51}, func(w *world) {
			time.Sleep(2 * time.Hour)
			w.page(0, to{51: gone})
			time.Sleep(30 * time.Minute)
			w.page(1, to{51: 8, 99: 8})
			time.Sleep(29*time.Minute + 20*time.Second)
			w.begin()
			w.taps(func(req, resp any, pass func() error) error {
				if at := readTime(req); !at.IsZero() && time.Since(at) > time.Hour-max(0, off) {
					return status.Error(codes.InvalidArgument, "the past is not kept")
				}
				err := pass()
				if found, ok := resp.(*pb.LookupResponse); ok && err == nil {
					found.ReadTime = timestamppb.New(found.ReadTime.AsTime().Add(off))
				}
				return err
			})
			if off < 0 { // the database's last hour has the deletion
				w.wantUndo(1, "51 becomes 51", "99 deleted")
			} else {
				w.wantUndo(1, "51 deleted", "99 deleted")
			}
		})
	}
}

// TestClocks undoes a page in each story. The clocks of the processes that record the job's start
// and its end are wrong. The result must be the same as with right clocks. In a usual run, each
// story has two of the six wrong pairs of clocks.
func TestClocks(t *testing.T) {
	some := testflag.Part(t, 3)
	for n, s := range stories {
		for i, off := range [][2]time.Duration{{-10, -10}, {-10, 10}, {-3, 3}, {3, -3}, {10, -10}, {10, 10}} {
			if !some(i + n) {
				continue
			}
			t.Run(fmt.Sprintf("%s, clocks off by %d", s.name, off), func(t *testing.T) {
				inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
					w.off = [2]time.Duration{off[0] * time.Minute, off[1] * time.Minute}
					w.restart(w.job)
					s.job(w)
					w.wantUndo(s.page, strings.Split(s.says, "\n")...)
				})
			})
		}
	}
}
