package record

import (
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below mapper/ must know its flags
)

// TestMarks starts and ends deliveries of a range, and checks whether the range then runs
// exclusively. In the steps, a:t1 starts delivery a of attempt 1 of task t, -a ends delivery a
// normally, and +11 lets eleven minutes pass.
func TestMarks(t *testing.T) {
	const deadline = 10 * time.Minute
	for name, c := range map[string]struct {
		steps string
		solo  bool
	}{
		"the process of an attempt died":            {"a:t1 b:t2", true},
		"all end in good order":                     {"a:t1 -a b:t2", false},
		"a twin meets the mark":                     {"a:t1 b:t1", false},
		"the twin is the first, and lives on":       {"b:t1 a:t1 -a c:t2", false},
		"a twin comes after the attempt":            {"a:t1 -a b:t1 c:t2", false},
		"a twin of an attempt behind a twin":        {"a:t1 -a b:t1 c:t2 -b -c d:t2 e:t3", false},
		"a late twin":                               {"a:t2 -a b:t1 c:t3", false},
		"a late twin, and one of the later attempt": {"a:t2 -a b:t1 -b c:t2 d:t3", false},
		"a late twin behind the mark":               {"a:t2 b:t1 c:t3", true},
		"a twin died":                               {"a:t1 -a b:t1 c:t2 +11 d:t3", true},
		"deliveries behind a mark, again and again": {"a:t1 b:t1 +4 c:t2 +4 d:t3 +4 e:t4", true},
		"another task":                              {"a:t1 b:u1", false},
		"a later attempt of another task":           {"a:t1 b:u2", false},
		"another task between two attempts":         {"a:t1 b:u1 c:t2", true},
		"another task twice, and one between":       {"a:u1 -a b:t1 -b c:u1 d:u2", false},
		"another task, after the deadline":          {"a:t1 +11 b:u0", true},
		"an attempt of another task died":           {"a:t1 -a b:u1 -b c:u2 d:u3", true},
		"a later attempt of another task's attempt": {"a:t1 -a b:u2 c:u3", false},
		"a twin of the later attempt":               {"a:t1 -a b:t2 -b c:t2 d:t3", false},
		"another task, at the deadline":             {"a:t1 +10 b:u0", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := &Range{State: Pending, PageSize: 10}, time.Unix(0, 0)
			for step := range strings.FieldsSeq(c.steps) {
				number := func(digits string) int {
					n, err := strconv.Atoi(digits)
					if err != nil {
						t.Fatal(err)
					}
					return n
				}
				switch step[0] {
				case '-':
					r.Alive(step[1:])
				case '+':
					now = now.Add(time.Duration(number(step[1:])) * time.Minute)
				default:
					r.Begin(CrashMark{step[:1], now, step[2:3], int64(number(step[3:])), false}, now, deadline)
				}
			}
			if r.Solo != c.solo {
				t.Errorf("solo: %v, want %v: %+v", r.Solo, c.solo, r)
			}
		})
	}
}

// TestDeathOfAnEntity checks a delivery of a single entity that counts as dead and then turns out
// to be alive.
func TestDeathOfAnEntity(t *testing.T) {
	const deadline = 10 * time.Minute
	begun := time.Unix(0, 0)
	r := &Range{State: Pending, PageSize: 10, Alone: true, Suspicion: Suspicion{Solo: true}}
	r.Begin(CrashMark{"a", begun, "t", 1, true}, begun, deadline)
	soon := begun.Add(time.Minute)
	r.Begin(CrashMark{"b", soon, "t", 2, true}, soon, deadline)
	late := soon.Add(deadline)
	r.Begin(CrashMark{"c", late, "t", 3, true}, late, deadline)
	if len(r.Deaths) != 2 || r.Died(late.Add(time.Minute)) != 1 || r.Died(late.Add(certainAfter)) != 2 || r.Doomed() {
		t.Errorf("deaths %v, settled %v", r.Deaths, r.DeathsCountAt)
	}
	if at := r.Certain(); !at.Equal(late.Add(certainAfter)) {
		t.Errorf("certain at %v", at)
	}
	if r.Alive("b"); r.Died(late.Add(2*deadline)) != 1 || r.Begun != "c" {
		t.Errorf("%+v", r)
	}
}

// TestDeathsCount checks when a death counts, how many deaths make an entity a failure, and that
// each death can be taken back.
func TestDeathsCount(t *testing.T) {
	const deadline = 10 * time.Minute
	begun := time.Unix(0, 0)
	var s Suspicion
	if s.Suspected() || !s.Certain().IsZero() {
		t.Errorf("nothing is known: %+v", s)
	}
	for i, c := range []struct {
		after time.Duration // time from the delivery's start until it counts as dead
		waits time.Duration // time until this death is certain
	}{
		{0, 0}, {9*time.Minute - 1, 0}, {9 * time.Minute, certainAfter}, {deadline, certainAfter},
		{time.Hour, certainAfter},
	} {
		now := begun.Add(c.after)
		if s.Doomed() {
			t.Errorf("doomed after %d deaths", i)
		}
		s.Die(CrashMark{Delivery: strconv.Itoa(i), At: begun}, now, deadline)
		if got := s.DeathsCountAt[i].Sub(now); got != c.waits {
			t.Errorf("a death after %v counts after %v, want %v", c.after, got, c.waits)
		}
	}
	if !s.Doomed() {
		t.Errorf("%d deaths do not condemn", len(s.Deaths))
	}
	for i := range 5 { // removes the first of the remaining ones
		if !s.Alive(strconv.Itoa(i)) || len(s.Deaths) != 4-i || len(s.DeathsCountAt) != 4-i || s.Alive("x") {
			t.Errorf("%d is alive: %v", i, s.Deaths)
		}
	}
	if s = (Suspicion{Begun: "d"}); !s.Suspected() {
		t.Error("a mark does not make it exclusive")
	}
}

// TestBegin checks what happens after a page has killed its process: the page is halved. If the
// page is a single entity, a death is recorded instead.
func TestBegin(t *testing.T) {
	const deadline = 10 * time.Minute
	begun := time.Unix(0, 0)
	for name, c := range map[string]struct {
		r        Range
		beside   bool // whether the process also did other work
		narrowed int64
		deaths   int
	}{
		"a page":                              {Range{PageSize: 100}, false, 50, 0},
		"a page of a small range":             {Range{PageSize: 100, Estimate: 10}, false, 5, 0},
		"a page of two":                       {Range{PageSize: 100, Narrowed: 2}, false, 1, 0},
		"a page beside others":                {Range{PageSize: 100}, true, 0, 0},
		"a page of one, which may be another": {Range{PageSize: 100, Narrowed: 1}, false, 1, 0},
		"a single entity":                     {Range{PageSize: 100, Alone: true}, false, 0, 1},
		"a single entity beside others":       {Range{PageSize: 100, Alone: true}, true, 0, 0},
	} {
		r := c.r
		r.Lost = true
		r.Begin(CrashMark{"a", begun, "t", 1, !c.beside}, begun, deadline)
		if r.Lost || r.Attempts != 1 || r.Narrowed != c.r.Narrowed || r.Solo {
			t.Errorf("%s: the first delivery: %+v", name, r)
		}
		r.Begin(CrashMark{"b", begun, "t", 2, true}, begun, deadline)
		if r.Attempts != 2 || r.Narrowed != c.narrowed || len(r.Deaths) != c.deaths || !r.Solo {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
