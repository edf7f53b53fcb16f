package main

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// TestProgressText has what is printed of a progress be rounded outwards, and say what is not
// known.
func TestProgressText(t *testing.T) {
	for want, p := range map[string]mapper.Progress{
		"50%; about 100 s": {AtLeast: .5, About: .5, AtMost: .5, LeftAtLeast: 99600 * time.Millisecond,
			Left: 99600 * time.Millisecond, LeftAtMost: 99600 * time.Millisecond},
		"42%, between 30% and 61%; about 5 min, between 2 min and 3 h": {AtLeast: .301, About: .42, AtMost: .602,
			LeftAtLeast: 2 * time.Minute, Left: 5 * time.Minute, LeftAtMost: 3 * time.Hour},
		"3%, between 0% and 100%; about 4 days, or more": {About: .03, AtMost: 1, Left: 100 * time.Hour},
		"0%, between 0% and 100%; not known":             {AtMost: 1},
	} {
		if got := operator.Percent(p) + "; " + operator.Takes(p); got != want {
			t.Errorf("%+v is %q, want %q", p, got, want)
		}
	}
}
