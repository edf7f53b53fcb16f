package main

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestIDs draws a million IDs with 128 generators concurrently. All must differ, each generator's
// IDs must increase, and each ID must have the time and shard of its drawing.
func TestIDs(t *testing.T) {
	const each = 1_000_000 / 128
	var all [128][]ID
	begun := time.Now()
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			g, err := NewGenerator(i%MaxPhysical, i)
			if err != nil {
				t.Error(err)
				return
			}
			for range each {
				id, err := g.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				all[i] = append(all[i], id)
			}
		})
	}
	group.Wait()
	seen := make(map[ID]bool, 1_000_000)
	for i, ids := range all {
		last := ID(0)
		for _, id := range ids {
			if id <= last || seen[id] {
				t.Fatalf("generator %d drew %d after %d", i, id, last)
			}
			if id.Physical() != i%MaxPhysical || id.Logical() != i || id.Time().Before(begun.Add(-time.Millisecond)) ||
				id.Time().After(time.Now().Add(time.Millisecond)) {
				t.Fatalf("%d says database %d, shard %d, %v; want %d, %d, about %v", id, id.Physical(), id.Logical(),
					id.Time(),
					i%MaxPhysical, i, begun)
			}
			last, seen[id] = id, true
		}
	}
	if len(seen) != each*128 {
		t.Errorf("%d ids", len(seen))
	}
}

// TestFields checks that the fields of an ID use separate bits.
func TestFields(t *testing.T) {
	for _, id := range []struct {
		ms                int64
		physical, logical int
		sequence          int64
	}{{0, 0, 0, 0}, {1, 0, 0, 0}, {1 << 41, 7, 127, 2047}, {1<<42 - 1, 0, 127, 0}, {12345, 3, 64, 1}} {
		got := newID(id.ms, id.physical, id.logical, id.sequence)
		if got < 0 || got.Time() != Epoch.Add(time.Duration(id.ms)*time.Millisecond) || got.Physical() != id.physical ||
			got.Logical() != id.logical || got.Sequence() != int(id.sequence) {
			t.Errorf("%+v: %d says %v, %d, %d, %d", id, got, got.Time(), got.Physical(), got.Logical(), got.Sequence())
		}
	}
	if newID(1<<(timeBits-1)-1, MaxPhysical-1, MaxLogical-1, sequences-1) != math.MaxInt64 {
		t.Error("the fields do not fill the bits of a positive number")
	}
}

// TestClock draws IDs while a generator's clock stands still, and after it was set back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerator(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		skew, begun, last := time.Duration(0), time.Now(), ID(0)
		g.now = func() time.Time { return Epoch.Add(time.Hour + time.Since(begun) + skew) }
		draw := func(n int) time.Duration {
			t.Helper()
			before := time.Now()
			for range n {
				id, err := g.Next(t.Context())
				if err != nil || id <= last {
					t.Fatalf("drew %d after %d, %v", id, last, err)
				}
				last = id
			}
			return time.Since(before)
		}
		if took := draw(sequences); took != 0 {
			t.Errorf("the ids of a millisecond took %v", took)
		}
		if took := draw(1); took != time.Millisecond {
			t.Errorf("the next one took %v, want 1ms", took)
		}
		skew = -100 * time.Millisecond
		if took := draw(sequences); took < 100*time.Millisecond || took > 102*time.Millisecond {
			t.Errorf("after a clock went back by 100ms, the IDs of a millisecond took %v", took)
		}
		skew = -time.Hour
		if took := draw(3 * sequences); took > 3*time.Millisecond {
			t.Errorf("after a clock went back by an hour, some IDs took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		skew = 0
		time.Sleep(2 * time.Hour)
		draw(sequences)
		if _, err := g.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("it waits although its caller does not: %v", err)
		}
	})
	for _, at := range []time.Time{time.Unix(0, 0), Epoch, Epoch.Add(times * time.Millisecond),
		time.Date(2170, 1, 1, 0, 0, 0, 0, time.UTC)} {
		g, err := NewGenerator(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		g.now = func() time.Time { return at }
		if id, err := g.Next(t.Context()); err == nil {
			t.Errorf("at %v it draws %d", at, id)
		}
	}
	if _, err := NewGenerator(MaxPhysical, 0); err == nil {
		t.Error("there is a generator for a database that ids can't name")
	}
}
