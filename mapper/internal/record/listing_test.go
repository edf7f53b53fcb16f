package record

import (
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
)

// TestListed checks that a job is in exactly the listings that select it, and that listings have
// jobs in the order of their starts.
func TestListed(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	j := &Job{ID: "x", Queue: "q", State: Running, Mapper: "m", Created: at}
	// an older build has written this record without entries
	old := &Job{ID: "y", State: Failed, Mapper: "m", Created: at.Add(-time.Microsecond)}
	for _, test := range []struct {
		l    Listing
		x, y bool
	}{
		{Listing{}, true, true},
		{Listing{Queue: "q"}, true, false},
		{Listing{Mapper: "m"}, true, true},
		{Listing{Mapper: "q"}, false, false},
		{Listing{State: Running}, true, false},
		{Listing{State: Failed, Mapper: "m"}, false, true},
		{Listing{Queue: "q", State: Running, Mapper: "m"}, true, false},
		{Listing{Queue: "q", State: Failed, Mapper: "m"}, false, false},
		{Listing{From: at}, true, false},
		{Listing{Before: at}, false, true},
		{Listing{From: at.Add(-time.Hour), Before: at.Add(time.Microsecond)}, true, true},
		{Listing{Queue: "q", From: at.Add(time.Microsecond)}, false, false},
		{Listing{Before: time.Unix(-1, 0)}, false, false},
	} {
		from, to := test.l.Bounds("")
		in := func(j *Job) bool {
			return slices.ContainsFunc(listed(j), func(s string) bool { return from <= s && s < to })
		}
		if in(j) != test.x || in(old) != test.y {
			t.Errorf("%+v: %v and %v", test.l, in(j), in(old))
		}
		if _, to := test.l.Bounds(j.Place()); slices.ContainsFunc(listed(j), func(s string) bool {
			return from <= s && s < to
		}) {
			t.Errorf("%+v: the job is before itself", test.l)
		}
	}
	if old.Place() >= j.Place() || !ValidPlace(j.Place()) || !ValidPlace(old.Place()) {
		t.Errorf("%q and %q", old.Place(), j.Place())
	}
	// Update also sets the entries of the record.
	j.Update()
	if n := len(j.Listed); n != 8 {
		t.Errorf("the job is listed %d times", n)
	}
	saved, err := datastore.SaveStruct(j)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range saved {
		if p.Name == "listed" && p.NoIndex {
			t.Error("listed has no index")
		}
	}
}
