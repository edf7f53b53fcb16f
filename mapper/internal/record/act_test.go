package record

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestActs checks that a history keeps the last hundred acts, and stays small whatever they say.
func TestActs(t *testing.T) {
	var h History
	for i := range 10_000 {
		h = h.With(Act{At: time.Unix(int64(i), 0), What: "paused", By: "ann", Why: fmt.Sprint(i), To: Running})
	}
	acts, err := h.Acts()
	if err != nil || len(acts) != 100 || acts[0].Why != "9900" || acts[99].Why != "9999" || acts[99].To != Running {
		t.Errorf("%d acts, %v: %+v", len(acts), err, acts)
	}
	for range 200 {
		h = h.With(Act{What: "paused", By: strings.Repeat("<", 200), Why: strings.Repeat("\x00", 500)})
	}
	if acts, err := h.Acts(); err != nil || len(acts) < 10 || len(h) > maxActBytes {
		t.Errorf("%d acts in %d bytes, %v", len(acts), len(h), err)
	}
	h = History("?")
	h = h.With(Act{What: "resumed"})
	if acts, err := h.Acts(); err != nil || len(acts) != 1 {
		t.Errorf("behind a history that can't be read: %+v, %v", acts, err)
	}
}
