package dashboard

import (
	"fmt"
	"os"
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
		"StartOptions.FailureShare and Job.Move")))
	if want := "“Ramp up”, “Filters”, \"failure_share\" of " +
		"the jobs API and “Move to this service”"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestDocActions checks that the package's documentation lists all actions.
func TestDocActions(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "asks before it acts: ")
	list, _, _ = strings.Cut(list, "\n//\n")
	listed := make(map[string]bool)
	for name := range strings.FieldsSeq(strings.NewReplacer(",", "", "//", "").Replace(list)) {
		listed[name] = true
	}
	for _, v := range verbs {
		if !listed[v.Name] {
			t.Errorf("doc.go lists the actions %q, and not %s", list, v.Name)
		}
		delete(listed, v.Name)
	}
	for name := range listed {
		t.Errorf("doc.go lists the action %s, which does not exist", name)
	}
}
