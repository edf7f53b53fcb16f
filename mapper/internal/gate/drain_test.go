package gate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestDrain drains a process with deliveries that take one second, two seconds, and so on.
func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name       string
		deliveries int
		waits      time.Duration // the timeout of the drain
		left       int
		took       time.Duration
	}{
		{name: "nothing is inside", waits: time.Minute},
		{name: "it waits for the last one", deliveries: 3, waits: time.Minute, took: 3 * time.Second},
		{name: "it does not wait for ever", deliveries: 5, waits: 2500 * time.Millisecond, left: 3,
			took: 2500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New()
				if leave, err := g.Admit(); err == nil { // one that has ended before
					leave()
				}
				for i := range c.deliveries {
					leave, err := g.Admit()
					if err != nil {
						t.Fatal(err)
					}
					time.AfterFunc(time.Duration(i+1)*time.Second, leave)
				}
				if g.IsDraining() || g.Draining().Err() != nil {
					t.Error("it drains already")
				}
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.waits)
				defer cancel()
				left, err := g.Drain(ctx)
				if took := time.Since(begun); left != c.left || (err != nil) != (c.left > 0) || took != c.took {
					t.Errorf("after %v %d are left, %v; want %d after %v", took, left, err, c.left, c.took)
				}
				if !g.IsDraining() || g.Draining().Err() == nil {
					t.Error("it does not drain")
				}
				if _, err := g.Admit(); !errors.Is(err, ErrDraining) {
					t.Errorf("a delivery is admitted: %v", err)
				}
				if _, err := g.Enter(t.Context(), false); !errors.Is(err, ErrDraining) {
					t.Errorf("a task enters: %v", err)
				}
				time.Sleep(time.Minute)
				if left, err := g.Drain(t.Context()); left != 0 || err != nil { // again, after all have ended
					t.Errorf("once more: %d, %v", left, err)
				}
			})
		})
	}
}

// TestDrainAtOnce drains a process in which nothing is, and whose time is over: it is drained.
func TestDrainAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // both are the case at once, and either may be seen first
		if left, err := New().Drain(ctx); left != 0 || err != nil {
			t.Fatalf("%d are left, %v", left, err)
		}
	}
}
