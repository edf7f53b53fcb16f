package record

import (
	"reflect"
	"testing"
)

// TestCauses checks that failures are grouped by their error texts, and that the largest group
// comes first. If not all failures were read, the sizes must be extrapolated.
func TestCauses(t *testing.T) {
	if got := Causes(nil, 0); len(got) != 0 {
		t.Errorf("no failures have causes: %+v", got)
	}
	var failed []*Range
	for i, text := range []string{"rare", "timeout", "odd", "timeout", "timeout"} {
		failed = append(failed, &Range{Start: at(int64(i + 1)), Error: text})
	}
	for all, want := range map[int64][]Cause{
		5:  {{"timeout", 3, false, failed[1]}, {"odd", 1, false, failed[2]}, {"rare", 1, false, failed[0]}},
		50: {{"timeout", 30, true, failed[1]}, {"odd", 10, true, failed[2]}, {"rare", 10, true, failed[0]}},
	} {
		if got := Causes(failed, all); !reflect.DeepEqual(got, want) {
			t.Errorf("of %d: %+v", all, got)
		}
	}
}
