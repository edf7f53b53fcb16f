package dashboard

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestSettingsOf checks that values which stand for no limit are shown in words.
func TestSettingsOf(t *testing.T) {
	t.Parallel()
	all, err := settingsOf(mapper.StartOptions{ID: "j", PageTime: 3 * time.Second, FailureLimit: mapper.Unlimited,
		Retain: mapper.RetainAlways})
	want := []setting{{"failure limit", "no limit"}, {"page time", "3s"}, {"retain", "always"}}
	if err != nil || len(all) != len(want) {
		t.Fatalf("%v, %v, want %v", all, err, want)
	}
	for i, s := range all {
		if s != want[i] {
			t.Errorf("%v, want %v", s, want[i])
		}
	}
}
