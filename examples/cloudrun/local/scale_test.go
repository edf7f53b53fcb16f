package main

import (
	"reflect"
	"testing"
	"time"
)

// TestWanted checks how many instances a number of requests needs.
func TestWanted(t *testing.T) {
	for _, c := range []struct{ min, max, concurrency, requests, want int }{
		{0, 4, 8, 0, 0},
		{0, 4, 8, 1, 1},
		{0, 4, 8, 4, 1},
		{0, 4, 8, 5, 2}, // 60% of 8 is 4.8
		{0, 4, 8, 9, 2},
		{0, 4, 8, 10, 3},
		{0, 4, 8, 1000, 4},
		{0, 9, 1, 1, 1}, // there are never more instances than requests
		{0, 9, 1, 5, 5},
		{0, 9, 80, 48, 1},
		{0, 9, 80, 49, 2},
		{2, 4, 8, 0, 2},
		{2, 4, 8, 12, 3},
		{3, 3, 8, 1000, 3},
	} {
		l := limits{min: c.min, max: c.max, concurrency: c.concurrency}
		if got := l.wanted(c.requests); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestInstances checks which instance gets a request, how many instances are started, and which are
// ended.
func TestInstances(t *testing.T) {
	const keep = time.Minute
	busy := func(n int) standing { return standing{stage: serving, underWay: n} }
	idle := func(d time.Duration) standing { return standing{stage: serving, idle: d} }
	begins, ends := standing{stage: starting}, standing{stage: ending, underWay: 1}
	for name, c := range map[string]struct {
		min, waiting int
		all          []standing
		choose       int
		missing      int
		spare        []int
		busiest      int
	}{
		"nothing is there":                  {all: nil, choose: -1, busiest: -1},
		"a request, and no instance":        {waiting: 1, choose: -1, missing: 1, busiest: -1},
		"it starts":                         {waiting: 1, all: []standing{begins}, choose: -1, busiest: -1},
		"three requests for one that is up": {waiting: 3, all: []standing{busy(0)}, choose: 0, missing: 2},
		"all are full":                      {waiting: 1, all: []standing{busy(2), busy(2)}, choose: -1, missing: 1},
		"at the maximum":                    {waiting: 9, all: []standing{busy(2), busy(2), begins}, choose: -1},
		"one ends, another starts for it":   {waiting: 1, all: []standing{ends}, choose: -1, missing: 1, busiest: -1},
		"the one with less":                 {all: []standing{busy(2), busy(1), idle(0)}, choose: 2, busiest: 0},
		"the oldest of two alike":           {all: []standing{ends, busy(1), busy(1)}, choose: 1, busiest: 1},
		"idle, not yet for long":            {all: []standing{idle(keep - 1)}, choose: 0},
		"idle for long": {all: []standing{idle(keep), busy(1), idle(keep)}, choose: 0,
			spare: []int{0, 2}, busiest: 1},
		"one of them stays": {min: 2, all: []standing{idle(keep), idle(keep), ends, begins}, choose: 0,
			spare: []int{0}},
		"none is missing": {min: 1, all: nil, choose: -1, missing: 1, busiest: -1},
	} {
		l := limits{min: c.min, max: 3, concurrency: 2, keep: keep}
		if got := l.choose(c.all); got != c.choose {
			t.Errorf("%s: a request goes to %d, want %d", name, got, c.choose)
		}
		if got := l.missing(c.all, c.waiting); got != c.missing {
			t.Errorf("%s: %d are missing, want %d", name, got, c.missing)
		}
		if got := l.spare(c.all); !reflect.DeepEqual(got, c.spare) {
			t.Errorf("%s: %v are to end, want %v", name, got, c.spare)
		}
		if got := busiest(c.all); got != c.busiest {
			t.Errorf("%s: %d is the busiest, want %d", name, got, c.busiest)
		}
	}
}

// TestTraffic checks that the newest revision gets its percentage of any hundred successive
// requests, and nearly its percentage of fewer.
func TestTraffic(t *testing.T) {
	for _, percent := range []int{0, 1, 10, 33, 50, 99, 100} {
		all := 0
		for i := range 1000 {
			if toNewest(i, percent) {
				all++
			}
			if d := all*100 - (i+1)*percent; d > 0 || d <= -100 {
				t.Fatalf("%d%%: %d of %d requests", percent, all, i+1)
			}
		}
	}
}

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		starts      int
		inAll, want time.Duration
	}{{0, 0, 10 * time.Second}, {2, 2 * time.Second, 10 * time.Second}, {2, 12 * time.Second, 21 * time.Second}} {
		if got := patience(10*time.Second, c.starts, c.inAll); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestScript checks which events happen during a job, and after how many calls of the function.
func TestScript(t *testing.T) {
	got := script(config{entities: 1000, term: 2, kill: 1, rollout: true, pause: true})
	want := []event{
		{250, actTerm, 0}, {250, actDeploy, 0}, {250, actShift, 10}, {500, actTerm, 0}, {500, actShift, 50},
		{500, actPause, 0},
		{750, actKill, 0}, {750, actShift, 100},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}
