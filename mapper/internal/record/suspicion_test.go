package record

import (
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
)

// TestMarks starts and ends deliveries of a range: a:t1 is delivery a of attempt 1 of task t, -a
// ends delivery a in good order, and +11 is eleven minutes.
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

// TestDeathOfAnEntity lets a delivery of a single entity seem to die, and then report that it is
// alive.
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
