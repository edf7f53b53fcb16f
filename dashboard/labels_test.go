package dashboard

import (
	"fmt"
	"strings"
	"testing"

	settings "github.com/scattermap/scattermap/internal/setting"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestLabels checks that errors call the form's inputs by their labels.
func TestLabels(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	entries, err := files.ReadDir("templates")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := files.ReadFile("templates/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, v := range verbs {
		all.WriteString(v.Label)
	}
	for input, label := range labels {
		if !strings.Contains(all.String(), label) {
			t.Errorf("%s is called %q, and no page has that", input, label)
		}
	}
	for setting, input := range inputs {
		if labels[input] == "" {
			t.Errorf("%s is entered as %s, which has no label", setting, input)
		}
	}
	s := new(server)
	got := s.said(fmt.Errorf("mapper: start: %w", settings.Errorf("StartOptions.Rate.Ramp, Query.Start, "+
		"StartOptions.PageTime and Job.Move")))
	if want := "“Ramp up”, “Filters”, \"page_time_ns\" of " +
		"the jobs API and “Move to this service”"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}
