package page

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"context"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// handOf returns a hand whose entity has failed with an error. If err is nil, the entity has not
// failed.
func handOf(place int, err error) *hand {
	h := &hand{place: place}
	if err != nil {
		h.r.failure = &record.Failure{Err: err, Permanent: fault.IsPermanent(err)}
	}
	return h
}

// TestEndOf checks how the end of a call is described to the brake (pace.Brake), which slows a job
// down while a service refuses its calls.
func TestEndOf(t *testing.T) {
	ok, bad, never := error(nil), errBad, fault.Permanent(errBad)
	later := fault.RetryAfter(errBad, time.Second)
	for _, c := range []struct {
		name  string
		errs  []error
		whole error
		want  pace.End
		later int
	}{
		{"one succeeds", []error{ok}, nil, pace.End{}, 0},
		{"one fails", []error{bad}, bad, pace.End{Failed: true, Busy: true}, 0},
		{"one fails for good", []error{never}, never, pace.End{Failed: true}, 0},
		{"one has to wait", []error{later}, later, pace.End{Failed: true, Busy: true, Later: true}, 1},
		{"some of a batch fail", []error{ok, bad, never}, nil,
			pace.End{Entities: pace.Calls{All: 3, Failed: 2, Busy: 1}}, 0},
		{"some of a batch have to wait", []error{ok, later, later}, nil,
			pace.End{Busy: true, Later: true, Entities: pace.Calls{All: 3, Failed: 2, Busy: 2}}, 2},
		{"all of a batch fail", []error{bad, bad}, nil,
			pace.End{Failed: true, Busy: true, Entities: pace.Calls{All: 2, Failed: 2, Busy: 2}}, 0},
		{"a batch fails as a whole", []error{bad, bad}, bad, pace.End{Failed: true, Busy: true}, 0},
	} {
		var hands []*hand
		for i, err := range c.errs {
			hands = append(hands, handOf(i, err))
		}
		if e, all := endOf(hands, c.whole); e != c.want || len(all) != c.later {
			t.Errorf("%s: %+v, %d have to wait, want %+v", c.name, e, len(all), c.want)
		}
	}
}

// TestGiveUp checks what happens to entities that a service refuses for now.
func TestGiveUp(t *testing.T) {
	later := fault.RetryAfter(errBad, time.Second)
	for _, c := range []struct {
		name      string
		places    []int
		impatient bool
		alone     bool
		before    int // number of entities that were given up before
		ends      int // the place before which the page ends; -1: the page continues
		attempts  int64
	}{
		{name: "one, for the first time", places: []int{4}, ends: -1, attempts: 2},
		{name: "one, for the third time", places: []int{4}, before: 2, ends: 4},
		{name: "one that is alone", places: []int{0}, alone: true, ends: 0},
		{name: "two", places: []int{4, 5}, ends: 4},
		{name: "the first one, which has waited long", places: []int{0}, impatient: true, ends: -1},
		{name: "another one, of a range that has waited long", places: []int{4}, impatient: true, before: 2, ends: 4},
		{name: "the first one, which has waited long, and another", places: []int{0, 5}, impatient: true, ends: 5},
	} {
		p := over(kindOf(1), function.Visit, func(*call) error { return nil }, 1)
		p.Impatient, p.Alone, p.Attempts = c.impatient, c.alone, 3
		brake := new(pace.Brake)
		for range c.before {
			brake.GiveUp()
		}
		var hands []*hand
		for _, place := range c.places {
			hands = append(hands, handOf(place, later))
		}
		got, ends := p.giveUp(brake, hands, called{}), -1
		if got.end != nil {
			ends = got.end.place
		}
		if ends != c.ends || (got.err != nil) != (c.ends == 0) || hands[0].r.failure.Attempts != c.attempts {
			t.Errorf("%s: it ends before %d, %v, after %d attempts", c.name, ends, got.err, hands[0].r.failure.Attempts)
		}
	}
}

// TestPauseOfAService checks that a page waits for a service as long as it may. Calls that the
// job's own rate does not allow must not count as refused by the service.
func TestPauseOfAService(t *testing.T) {
	for pause, want := range map[time.Duration]int64{10 * time.Second: 2, 10*time.Second - 1: 1} {
		synctest.Test(t, func(t *testing.T) {
			calls := new(atomic.Int64)
			p := over(kindOf(1), function.Visit, func(*call) error {
				if calls.Add(1) == 1 {
					return fault.RetryAfter(errBad, 10*time.Second)
				}
				return nil
			}, 1)
			p.Pause, p.Job.PageTime = pause, int64(time.Hour)
			if o, err := p.Run(t.Context()); err != nil || calls.Load() != want {
				t.Errorf("it may wait %v: %d calls, %+v, %v", pause, calls.Load(), o, err)
			}
		})
	}
	p := over(kindOf(1), function.Visit, func(c *call) error { return c.AwaitCalls(c, 1) }, 1)
	p.Calls = func(context.Context, int, int64, bool) error { return errNoCall }
	if _, err := p.Run(t.Context()); !errors.Is(err, errNoCall) {
		t.Error(err)
	}
	if n := p.Paces.Brake(p.Job.Ref()).Lately(); n.Failed != 0 || n.Busy != 0 {
		t.Errorf("the brake has %+v", n)
	}
}

// TestLeft checks what the brake (pace.Brake) is told about a call that was abandoned or has ended
// its goroutine. It also checks that this call can read nothing any more.
func TestLeft(t *testing.T) {
	for _, c := range []struct {
		left error
		want pace.Calls
	}{
		{function.ErrTimeout, pace.Calls{All: 1, Failed: 1, Busy: 1}},
		{errBad, pace.Calls{All: 1, Failed: 1}},
	} {
		p := over(kindOf(1, 7), function.Visit, func(*call) error { return nil }, 1)
		o := new(Results)
		o.known.note(keyOf(7), kindOf(7).stamp(7))
		seen, none := &hand{view: &view{outcome: o}}, new(hand)
		err := p.left(&group{hands: []*hand{seen, none}, pass: new(pace.Pass)}, c.left)
		if slow := errors.As(err, new(TooSlowError)); slow != errors.Is(c.left, function.ErrTimeout) ||
			!slow && !errors.Is(err, c.left) {
			t.Errorf("%v: %v", c.left, err)
		}
		if got := p.Paces.Brake(p.Job.Ref()).Lately(); got != c.want {
			t.Errorf("%v: the brake has %+v, want %+v", c.left, got, c.want)
		}
		if _, known := seen.view.Known(keyOf(7)); known {
			t.Errorf("%v: the function still reads", c.left)
		}
	}
}

// TestNarrow checks the calls for the halves of a failed batch, and when they stop.
func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		name   string
		places []int
		ago    time.Duration // time since the batch was called
		first  called        // the outcome of the first half
		calls  int
		want   called
		ends   bool // whether the page ends before the second half
	}{
		{name: "both halves", places: []int{4, 5}, first: called{waited: time.Second}, calls: 2,
			want: called{waited: 7 * time.Second}},
		{name: "the first half was abandoned", places: []int{4, 5}, first: called{abandoned: true}, calls: 1,
			want: called{abandoned: true, waited: 5 * time.Second}},
		{name: "the first half ends the page", places: []int{4, 5}, first: called{err: errBad}, calls: 1,
			want: called{err: errBad, waited: 5 * time.Second}},
		{name: "its time is not over", places: []int{4, 5}, ago: 20*time.Second - 1, calls: 2,
			want: called{waited: 6 * time.Second}},
		{name: "its time is over", places: []int{4, 5}, ago: 20 * time.Second, want: called{waited: 5 * time.Second},
			ends: true},
		{name: "its time is over, at the page's first entity", places: []int{0, 1}, ago: 20 * time.Second, calls: 1,
			want: called{waited: 5 * time.Second}, ends: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			// the page may take at most 20 s
			p := over(kindOf(1), function.Visit, func(*call) error { return nil }, 1)
			var hands []*hand
			for _, place := range c.places {
				hands = append(hands, &hand{place: place, r: result{at: p.At[0]}})
			}
			g := &group{narrows: &narrowing{begun: time.Now().Add(-c.ago)}}
			calls := 0
			got := p.narrow(g, hands, called{waited: 5 * time.Second}, func(*group) called {
				if calls++; calls == 1 {
					return c.first
				}
				return called{waited: time.Second}
			})
			ends := got.end != nil
			if got.end = nil; calls != c.calls || ends != c.ends || got != c.want {
				t.Errorf("%s: %+v after %d calls, ends %v", c.name, got, calls, ends)
			}
		})
	}
}
