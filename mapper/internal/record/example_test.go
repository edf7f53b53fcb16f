package record

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestExamples checks that a page of a rehearsal (a dry run) stores its examples if they fit. They
// must be returned in the order of the pages.
func TestExamples(t *testing.T) {
	size := func(all []Example) int {
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return len(text)
	}
	small := []Example{{What: "delete"}}
	exact := []Example{{What: strings.Repeat("x", undolog.MaxKeys-size([]Example{{}}))}}
	large := []Example{{What: exact[0].What + "x"}}
	for name, c := range map[string]struct {
		all  []Example
		fits bool
	}{"none": {nil, false}, "small": {small, true}, "as much as fits": {exact, true}, "more": {large, false}} {
		r := &Range{Job: "j"}
		r.Exemplify(c.all)
		if fits := len(r.Examples) > 0; fits != c.fits || fits != (r.ExamplesOf == "j") {
			t.Errorf("%s: %d bytes of %q", name, len(r.Examples), r.ExamplesOf)
		}
		if !c.fits {
			continue
		}
		other := &Range{Job: "j"}
		other.Exemplify(small)
		if got, err := ExamplesOf([]*Range{r, other}); err != nil || len(got) != 2 || got[0].What != c.all[0].What ||
			got[1].What != "delete" {
			t.Errorf("%s: %d examples, %v", name, len(got), err)
		}
	}
}
