package undo

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// A failing is a tap that fails the call after a number of others.
type failing struct {
	world *world
	after int
	lose  bool // it is carried out, and its answer is lost
	calls int
}

func (f *failing) tap(_, _ any, pass func() error) error {
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
	return status.Error(codes.Internal, "injected")
}

// fail runs f and fails one of its calls. It reports whether f has made that call.
func (w *world) fail(after int, lose bool, f func()) (failed bool) {
	tap := &failing{world: w, after: after, lose: lose}
	w.taps(tap.tap)
	f()
	w.taps(nil)
	return tap.calls > after
}

// TestStories undoes a page of each story, and counts its calls.
func TestStories(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
				s.job(w)
				if n := w.calls(func() { w.wantUndo(s.page, strings.Split(s.says, "\n")...) }); n != s.calls {
					t.Errorf("%d calls, want %d", n, s.calls)
				}
			})
		})
	}
}

// TestFailingCalls fails each call of an undo's page. The page then fails for now, and its next
// attempt does what it would have done at first, in the same delivery and in another one.
func TestFailingCalls(t *testing.T) {
	testflag.Sequential(t)
	for _, p := range stories {
		t.Run(p.name, func(t *testing.T) {
			inWorld(t, 3, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
				p.job(w)
				for after := 0; ; after += 1 + after/3 { // many looks for a deletion are alike
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

// runUnkept undoes a page, and refuses one of its reads of the past: the one after the given number
// of others. It returns the moment that was not read; zero: the page has no more reads.
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

// TestUnkept refuses each read of the past of an undo's page in turn, as the database does if it no
// longer keeps that past. An entity then becomes what it would have become, or it stays and is
// listed, or the page can't be undone at all.
func TestUnkept(t *testing.T) {
	testflag.Sequential(t)
	for _, s := range stories {
		// one look may miss others, as documented, and an earlier page's deletion counts if it is kept
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
					if err != nil { // the states just before and after it must be kept, or a minute's
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
