package split

import (
	"testing"
	"time"
)

// TestOutlook checks the outlook for some open ranges.
func TestOutlook(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name    string
		ranges  []OpenRange
		part    float64
		workers int64
		want    Outlook
	}{
		{"none", nil, 1, 10, Outlook{}},
		{"one whose pace was seen, and one whose was not", []OpenRange{{Estimate: 10, Pace: 2 * s}, {Estimate: 10}}, 1,
			10, Outlook{Open: 2, Entities: 20, Rest: 30 * s}},
		{"half of what is open", []OpenRange{{Estimate: 10, Pace: 2 * s}, {Estimate: 10}}, 0.5, 10,
			Outlook{Open: 4, Entities: 40, Rest: 60 * s}},
		{"a worker has been at each of them", []OpenRange{{Estimate: 10, Age: 4 * s}, {Estimate: 10, Age: s}}, 1, 10,
			Outlook{Open: 2, Entities: 15, Rest: 15 * s}},
		{"a worker has been at the oldest one", []OpenRange{{Estimate: 10, Age: s}, {Estimate: 10, Age: 4 * s}}, 1, 1,
			Outlook{Open: 2, Entities: 16, Rest: 16 * s}},
		{"it takes longer than it should", []OpenRange{{Estimate: 10, Age: 20 * s}}, 1, 1, Outlook{Open: 1}},
	} {
		if got := OutlookOf(test.ranges, test.part, test.workers, s, 1<<40); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
	// The calls for a page of 100 entities take pageCalls, which is 1.5 ms for each. The function
	// takes only 1 µs. So in 1.5 s a worker has processed 999 of the 10,000 entities.
	cheap := OutlookOf([]OpenRange{{Estimate: 10_000, Age: 1500 * time.Millisecond}}, 1, 1, time.Microsecond, 100)
	if want := (Outlook{Open: 1, Entities: 9001, Rest: 9001 * time.Microsecond}); cheap != want {
		t.Errorf("of a cheap function: %+v, want %+v", cheap, want)
	}
	if free := OutlookOf([]OpenRange{{Estimate: 10_000}}, 1, 1, 0, 100); free.Entities != 10_000 {
		t.Errorf("of a free function: %+v", free)
	}
	if got, want := Unseen(100, 10, s), (Outlook{Open: 10, Entities: 1000, Rest: 1000 * s}); got != want {
		t.Errorf("unseen: %+v, want %+v", got, want)
	}
}
