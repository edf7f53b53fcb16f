package executor

import (
	"errors"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// The kinds of places in the gate that a delivery can have.
const (
	none = iota
	shared
	alone
)

// placeOf returns the kind of place that a delivery has.
func placeOf(d *delivery) int {
	switch {
	case d.place.Exclusive:
		return alone
	case d.place.Leave != nil:
		return shared
	}
	return none
}

// TestEnter checks how a delivery takes its place in the gate, and when it checks whether its job
// still runs. In each case, the job was paused a moment before.
func TestEnter(t *testing.T) {
	for _, c := range []struct {
		name      string
		has       int // the place that the delivery already has
		exclusive bool
		begun     bool // whether the range's record has the delivery's crash mark
		other     int  // the place that another task has, for ten seconds
		refused   bool // whether the database fails
		drains    bool
		want      int
		s         standing
		wrong     error
		waits     time.Duration
	}{
		{name: "the first place", want: shared},
		{name: "beside another task", other: shared, want: shared},
		{name: "it has one", has: shared, want: shared},
		{name: "an exclusive one", exclusive: true, want: alone},
		{name: "an exclusive one in place of its own", has: shared, exclusive: true, want: alone},
		{name: "it has an exclusive one", has: alone, exclusive: true, want: alone},
		{name: "it has an exclusive one, and needs none", has: alone, want: alone},
		{name: "after another task", other: alone, want: shared, s: stopped, waits: 10 * time.Second},
		{name: "exclusively after another task", other: shared, exclusive: true, want: alone, s: stopped,
			waits: 10 * time.Second},
		{name: "with its mark", has: shared, begun: true, want: shared, s: stopped},
		{name: "with its mark, and the database fails", has: shared, begun: true, refused: true, want: shared,
			wrong: errInjected},
		{name: "after another task, and the database fails", other: alone, refused: true, want: shared,
			wrong: errInjected, waits: 10 * time.Second},
		{name: "it drains", drains: true, want: none, wrong: gate.ErrDraining},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				d := loaded(w, x, w.NewJob("j", "m"))
				if err := w.Jobs.Pause(w.Context(), d.job.Ref()); err != nil {
					w.Fatal(err)
				}
				if c.has != none {
					d.place, _ = x.Gate.Enter(w.Context(), c.has == alone)
				}
				if d.state.begun = c.begun; c.other != none {
					other, err := x.Gate.Enter(w.Context(), c.other == alone)
					if err != nil {
						w.Fatal(err)
					}
					time.AfterFunc(10*time.Second, other.Leave)
				}
				if c.refused {
					refuse(w, "Lookup", errInjected)
				}
				if c.drains {
					_, _ = x.Gate.Drain(w.Context())
				}
				asked := time.Now()
				d.place.Waited = c.has != none
				s, err := d.enter(w.Context(), c.exclusive)
				if s != c.s || (err != nil) != (c.wrong != nil) || c.drains && !errors.Is(err, c.wrong) {
					w.Errorf("%d, %v", s, err)
				}
				if waited := time.Since(asked); placeOf(d) != c.want || waited < c.waits ||
					waited > c.waits+5*time.Second {
					w.Errorf("after %v its place is %d, want %d", time.Since(asked), placeOf(d), c.want)
				}
				if c.has != none && c.has == c.want && !d.place.Waited {
					w.Error("it has another place")
				}
				d.leave()
				d.leave() // a second call has no effect
				time.Sleep(time.Minute)
				if place, err := x.Gate.Enter(w.Context(), true); (err == nil) == c.drains {
					w.Errorf("after it has left: %v", err)
				} else if err == nil {
					place.Leave()
				}
			})
		})
	}
}
