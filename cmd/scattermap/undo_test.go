package main

import (
	"strings"
	"testing"
)

// TestUndo undoes a job from the command line, and tries undos that are refused.
func TestUndo(t *testing.T) {
	newService(t, 300)
	start := func(id string) {
		t.Helper()
		if _, errs, code := command(t, "", "start", "add-credit", "--kind", "Account", "--params", `{"Amount": 10}`,
			"--id", id, "--watch"); code != 0 {
			t.Fatal(errs)
		}
	}
	start("one")
	start("two")
	for _, test := range []struct {
		typed string
		args  []string
		code  int
		says  string // a part of one of the two outputs
	}{
		{"", []string{"undo", "two"}, 1, "nothing was done: --yes does it"},
		{"", []string{"retry", "two"}, 1, "it has no failures to retry"},
		{"n\n", []string{"undo", "two"}, 1,
			"Undo job two of add-credit? Its state is \"succeeded\", and it has written 300 entities."},
		{"", []string{"undo", "none", "--yes"}, 1, "no such job: none"},
		{"", []string{"undo"}, 2, "name one job"},
		{"", []string{"undo", "two", "--dry-run", "--watch"}, 0,
			"it would restore 300 entities, and not restore 0"},
		{"", []string{"undo", "two", "--dry-run"}, 0, "undo-two-rehearsal-"},
		{"", []string{"undo", "one", "--dry-run", "--watch"}, 0,
			"it would restore 0 entities, and not restore 300"},
		{"y\n", []string{"undo", "two", "--watch"}, 0,
			"300 entities restored, 0 not restored"},
		{"", []string{"left", "undo-two"}, 0, "left no entity unchanged"},
		{"", []string{"retry", "two"}, 1, "job undo-two undoes it"},
		{"", []string{"undo", "two", "--yes", "--id", "again"}, 1, "job undo-two undoes it"},
		{"", []string{"history", "two"}, 0, "undone by job undo-two"},
		{"y\n", []string{"undo", "undo-two", "--watch"}, 0,
			"Undo the undo undo-two? Its state is \"succeeded\": 300 entities restored"},
		{"", []string{"undo", "one", "--yes", "--watch"}, 0,
			"0 entities restored, 300 not restored"},
		{"", []string{"left", "undo-one", "--limit", "2"}, 0, "it was changed after the job wrote it"},
		{"", []string{"left", "undo-one", "--limit", "0"}, 2, "--limit is 0"},
		{"", []string{"left", "undo-one", "--all", "-o", "json"}, 0,
			`"reason": "it was changed after the job wrote it"`},
		{"", []string{"clone", "one", "--yes", "--id", "one"}, 2, "--id is the ID of the job itself"},
		{"", []string{"clone", "undo-one", "--yes"}, 1, "is an undo, and can't be cloned"},
		{"", []string{"left", "one"}, 1, "it is no undo"},
		{"", []string{"describe", "one"}, 0, "undo-one"},
		{"", []string{"describe", "undo-one"}, 0, "300 not restored"},
		{"", []string{"describe", "undo-one"}, 0, "the pages of job one\n"},
		{"", []string{"describe", "undo-undo-two"}, 0, "the pages of job undo-two\n"},
		{"", []string{"start", "add-credit", "--kind", "Account", "--budget", "inf"}, 2, "--budget"},
		{"", []string{"rate", "one", "NaN"}, 2, "is not a number"},
		{"", []string{"start", "add-credit", "--kind", "Account", "--filter", "Balance != 1"}, 2,
			"a job has no NOT_EQUAL"},
		{"", []string{"start", "add-credit", "--kind", "Account", "--filter", "Balance IN ARRAY()"}, 2, "IN"},
	} {
		out, errs, code := command(t, test.typed, test.args...)
		if code != test.code || !strings.Contains(errs+out, test.says) {
			t.Errorf("%q: code %d, want %d and %q:\n%s%s", test.args, code, test.code, test.says, errs, out)
		}
	}
	if out, _, _ := command(t, "", "describe", "undo-one"); strings.Contains(out, "ScattermapRange") {
		t.Errorf("an undo shows its internal query:\n%s", out)
	}
	out, _, _ := command(t, "", "left", "undo-one", "--all")
	if n := strings.Count(out, "\n"); n != 301 {
		t.Errorf("%d lines of what was left", n)
	}
}
