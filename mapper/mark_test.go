package mapper

import (
	"testing"
	"time"
)

// TestMarks has deliveries of a range begin one after the other.
func TestMarks(t *testing.T) {
	const deadline = 10 * time.Minute
	type step struct {
		mark mark
		ends bool // in good order, before the next one begins
	}
	at := func(minutes int) time.Time { return time.Unix(0, 0).Add(time.Duration(minutes) * time.Minute) }
	for name, c := range map[string]struct {
		steps []step
		solo  bool
	}{
		"the process of an attempt died":       {[]step{{mark: mark{"a", at(0), "t", 1}}, {mark: mark{"b", at(1), "t", 2}}}, true},
		"all end in good order":                {[]step{{mark{"a", at(0), "t", 1}, true}, {mark: mark{"b", at(1), "t", 2}}}, false},
		"a twin meets the mark":                {[]step{{mark: mark{"a", at(0), "t", 1}}, {mark: mark{"b", at(0), "t", 1}}}, false},
		"the twin is the first, and lives on":  {[]step{{mark: mark{"b", at(0), "t", 1}}, {mark{"a", at(0), "t", 1}, true}, {mark: mark{"c", at(1), "t", 2}}}, false},
		"a twin comes after the attempt":       {[]step{{mark{"a", at(0), "t", 1}, true}, {mark: mark{"b", at(1), "t", 1}}, {mark: mark{"c", at(2), "t", 2}}}, false},
		"a twin of an attempt behind a twin":   {[]step{{mark{"a", at(0), "t", 1}, true}, {mark: mark{"b", at(1), "t", 1}}, {mark{"c", at(2), "t", 2}, true}, {mark: mark{"d", at(2), "t", 2}}, {mark: mark{"e", at(3), "t", 3}}}, false},
		"a late twin":                          {[]step{{mark{"a", at(0), "t", 2}, true}, {mark: mark{"b", at(1), "t", 1}}, {mark: mark{"c", at(2), "t", 3}}}, false},
		"a twin died":                          {[]step{{mark{"a", at(0), "t", 1}, true}, {mark: mark{"b", at(1), "t", 1}}, {mark: mark{"c", at(2), "t", 2}}, {mark: mark{"d", at(12), "t", 3}}}, true},
		"another task":                         {[]step{{mark: mark{"a", at(0), "t", 1}}, {mark: mark{"b", at(1), "u", 1}}}, false},
		"another task, and then the first one": {[]step{{mark: mark{"a", at(0), "t", 1}}, {mark: mark{"b", at(1), "u", 1}}, {mark: mark{"c", at(2), "t", 2}}}, false},
		"another task, after the deadline":     {[]step{{mark: mark{"a", at(0), "t", 1}}, {mark: mark{"b", at(11), "u", 0}}}, true},
		"an attempt of another task died":      {[]step{{mark{"a", at(0), "t", 1}, true}, {mark{"b", at(1), "u", 1}, true}, {mark: mark{"c", at(2), "u", 2}}, {mark: mark{"d", at(3), "u", 3}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rangeRecord{State: pending, PageSize: 10}
			for _, s := range c.steps {
				r.begin(s.mark, s.mark.at, deadline)
				if s.ends {
					r.alive(s.mark.delivery)
				}
			}
			if r.Solo != c.solo {
				t.Errorf("solo: %v, want %v: %+v", r.Solo, c.solo, r)
			}
		})
	}
}
