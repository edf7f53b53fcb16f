package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var alice = Subject{Words: []string{"alice"}}

func history(acts ...Act) (h History) {
	for _, a := range acts {
		h = h.With(a)
	}
	return h
}

// acts returns the texts of each entry in a history: the action, the operator and the reason.
func acts(t *testing.T, h History) (all [][3]string) {
	t.Helper()
	of, err := h.Acts()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range of {
		all = append(all, [3]string{a.What, a.By, a.Why})
	}
	return all
}

// TestRedact checks that the redacted record of a job does not tell what the job was about. It must
// keep numbers, times and actions.
func TestRedact(t *testing.T) {
	job := Job{ID: "j", Query: []byte(`{"kind":"Account"}`), Params: []byte(`{"name":"alice"}`), Undo: "undo-alice",
		Closing: []byte(`{}`), Error: "no mail to alice", Trouble: "alice is busy", RetryOf: "no mail",
		History: history(
			Act{What: "paused", By: "ann", Why: "alice complained"}, Act{What: "resumed", By: "alice"},
			Act{What: "undone by job undo-3"}, Act{What: "moved to alice"})}
	sum := Totals{Processed: 5, Counters: map[string]int64{"alice": 2},
		Spaces: map[string]SpaceTotals{"acme/Account": {Processed: 5}}, SpacesLeftOut: 3}
	if err := sum.RecordIn(&job); err != nil {
		t.Fatal(err)
	}
	j := job
	if err := j.Redact(alice, "salt", noon); err != nil {
		t.Fatal(err)
	}
	hash := Salted("salt", string(job.Query)+"\x00"+string(job.Params))
	if string(j.Query) != `{"kind":"erased-`+hash+`"}` || string(j.Params) != `{"erased":"`+hash+`"}` {
		t.Errorf("query %s, parameters %s", j.Query, j.Params)
	}
	want := [][3]string{{"paused", "ann", "(erased)"}, {"resumed", "(erased)", ""}, {"(erased)", "", ""},
		{"(erased)", "", ""}}
	if got := acts(t, j.History); !reflect.DeepEqual(got, want) {
		t.Errorf("history %q, want %q", got, want)
	}
	if j.Undo != "" || j.Closing != nil || !j.Erased.Equal(rounded) || j.Error != "(erased)" ||
		j.Trouble != "(erased)" || j.RetryOf != "(erased)" || !j.CountersDropped {
		t.Errorf("%+v", j)
	}
	if got, err := j.RecordedTotals(); err != nil || got.Processed != 5 || got.Counters != nil || got.Spaces != nil ||
		got.SpacesLeftOut != 0 {
		t.Errorf("totals %+v, %v", got, err)
	}
	j = Job{ID: "j", History: History(`"alice"`)}
	if err := j.Redact(alice, "salt", noon); err != nil || len(j.History) > 0 {
		t.Errorf("a history that can't be read: %s, %v", j.History, err)
	}
}

// TestRedactOperators checks which operators' names stay in a redacted history. If nothing says
// what identifies the subject, none stays.
func TestRedactOperators(t *testing.T) {
	for _, c := range []struct {
		of     Subject
		erased bool
	}{
		{Subject{}, true}, {Subject{Namespace: "acme"}, false}, {Subject{Everywhere: true}, false},
		{Subject{Numbers: []int64{7}}, false}, {Subject{Times: []time.Time{noon}}, false},
	} {
		j := Job{ID: "j", History: history(Act{What: "paused", By: "ann"}, Act{What: "resumed"})}
		want := [][3]string{{"paused", "ann", ""}, {"resumed", "", ""}}
		if c.erased {
			want[0][1] = "(erased)"
		}
		if err := j.Redact(c.of, "salt", noon); err != nil || !reflect.DeepEqual(acts(t, j.History), want) {
			t.Errorf("of %+v: history %q, want %q, %v", c.of, acts(t, j.History), want, err)
		}
	}
}

// TestRedactTexts checks that texts which mention the subject are removed, and all others are kept.
func TestRedactTexts(t *testing.T) {
	totals := func(s Totals) []byte {
		var j Job
		if err := s.RecordIn(&j); err != nil {
			t.Fatal(err)
		}
		return j.Totals
	}
	damaged := []byte("\x00alice")
	of := totals(Totals{Processed: 5, Counters: map[string]int64{"alice": 2}})
	spaces := totals(Totals{Processed: 5, Spaces: map[string]SpaceTotals{"alice/K": {}}})
	other := totals(Totals{Processed: 5, Counters: map[string]int64{"bob": 2}})
	bare := totals(Totals{Processed: 5})
	for _, test := range []struct {
		name    string
		j, want Job
		changed bool
		fails   bool
	}{
		{"nothing of it", Job{History: history(Act{What: "paused", By: "bob", Why: "x"}), Error: "no bob", Trouble: "t",
			RetryOf: "r", Totals: other},
			Job{History: history(Act{What: "paused", By: "bob", Why: "x"}), Error: "no bob", Trouble: "t",
				RetryOf: "r", Totals: other}, false, false},
		{"nothing at all", Job{}, Job{}, false, false},
		{"a reason", Job{History: history(Act{What: "paused", By: "bob", Why: "alice"}, Act{What: "resumed"})},
			Job{History: history(Act{What: "paused", By: "bob", Why: "(erased)"}, Act{What: "resumed"})}, true, false},
		{"an action", Job{History: history(Act{What: "undone by job alice"})},
			Job{History: history(Act{What: "(erased)"})}, true, false},
		{"an operator", Job{History: history(Act{By: "alice"})},
			Job{History: history(Act{By: "(erased)"})}, true, false},
		{"a history that can't be read", Job{History: History("?")}, Job{}, true, false},
		{"an error", Job{Error: "no alice"}, Job{Error: "(erased)"}, true, false},
		{"an error, and others' counters", Job{Error: "no alice", Totals: other},
			Job{Error: "(erased)", Totals: other}, true, false},
		{"a trouble", Job{Trouble: "no alice"}, Job{Trouble: "(erased)"}, true, false},
		{"a cause", Job{RetryOf: "no alice", Error: "no bob"}, Job{RetryOf: "(erased)", Error: "no bob"}, true, false},
		{"a counter", Job{Totals: of, Error: "no bob"}, Job{Totals: bare, Error: "no bob", CountersDropped: true}, true,
			false},
		{"a namespace", Job{Totals: spaces}, Job{Totals: bare}, true, false},
		{"a namespace of a job without counters", Job{Totals: spaces, CountersDropped: true},
			Job{Totals: bare, CountersDropped: true}, true, false},
		{"totals that can't be read", Job{Totals: damaged}, Job{Totals: damaged}, false, true},
		{"an error, and totals that can't be read", Job{Error: "no alice", Totals: damaged},
			Job{Error: "(erased)", Totals: damaged}, true, true},
	} {
		j := test.j
		changed, err := j.RedactTexts(alice)
		if changed != test.changed || (err != nil) != test.fails {
			t.Errorf("%s: changed %v, %v", test.name, changed, err)
		}
		if !bytes.Equal(j.History, test.want.History) || j.Error != test.want.Error || j.Trouble != test.want.Trouble ||
			j.RetryOf != test.want.RetryOf || !bytes.Equal(j.Totals, test.want.Totals) ||
			j.CountersDropped != test.want.CountersDropped {
			t.Errorf("%s: %+v, want %+v", test.name, j, test.want)
		}
	}
}

// TestRedactValues checks that errors and names are removed, and that the result says whether there
// were any.
func TestRedactValues(t *testing.T) {
	totals := func(counters map[string]int64, spaces map[string]SpaceTotals) []byte {
		var j Job
		if err := (&Totals{Processed: 5, Counters: counters, Spaces: spaces}).RecordIn(&j); err != nil {
			t.Fatal(err)
		}
		return j.Totals
	}
	for _, test := range []struct {
		name                    string
		j                       Job
		changed, dropped, fails bool
	}{
		{"nothing", Job{}, false, false, false},
		{"an error", Job{Error: "x"}, true, false, false},
		{"an error that was erased", Job{Error: "(erased)"}, false, false, false},
		{"counters", Job{Totals: totals(map[string]int64{"x": 1}, nil)}, true, true, false},
		{"namespaces", Job{Totals: totals(nil, map[string]SpaceTotals{"x/K": {}})}, true, false, false},
		{"namespaces of a job that has dropped its counters", Job{CountersDropped: true,
			Totals: totals(nil, map[string]SpaceTotals{"x/K": {}})}, true, true, false},
		{"numbers", Job{Totals: totals(nil, nil)}, false, false, false},
		{"totals that can't be read", Job{Totals: []byte("{")}, false, false, true},
		{"totals of which some can be read", Job{Totals: []byte(`{"counters":{"x":1},"processed":"5"}`)}, false, false,
			true},
	} {
		changed, err := test.j.RedactValues()
		if changed != test.changed || test.j.CountersDropped != test.dropped || (err != nil) != test.fails {
			t.Errorf("%s: changed %v, dropped %v, %v", test.name, changed, test.j.CountersDropped, err)
		}
		if sum, err := test.j.RecordedTotals(); err == nil && (sum.Counters != nil || sum.Spaces != nil) {
			t.Errorf("%s: %+v", test.name, sum)
		}
		if again, err := test.j.RedactValues(); again || (err != nil) != test.fails {
			t.Errorf("%s, again: changed %v, %v", test.name, again, err)
		}
	}
}

// TestRedactPast checks a schedule's past ticks (planned times of runs) after an erasure. They must
// keep their outcomes, and the IDs of jobs that do not mention the subject.
func TestRedactPast(t *testing.T) {
	var s Schedule
	s.Skip(rounded, "alice")
	s.Start(rounded.Add(time.Hour), "nightly-1")
	s.RedactPast(alice, "salt")
	first, _ := s.Became(rounded)
	second, _ := s.Became(rounded.Add(time.Hour))
	if first.Job != "erased-"+Salted("salt", "alice") || first.Outcome != TickSkipped || second.Job != "nightly-1" {
		t.Errorf("%+v, %+v", first, second)
	}
	for _, past := range []string{"", "?", "[]"} {
		s = Schedule{Past: []byte(past)}
		if s.RedactPast(alice, "salt"); s.Past != nil {
			t.Errorf("of %q remains %q", past, s.Past)
		}
	}
}

// TestClosing checks that a job which deletes its records keeps their summary. For a damaged
// summary there must be an error.
func TestClosing(t *testing.T) {
	j := Job{ID: "j"}
	if c, err := j.DecodeClosing(); c != nil || err != nil {
		t.Errorf("a job that keeps its records: %+v, %v", c, err)
	}
	want := Closing{Ranges: 3, Alone: 1, Failures: 1, Salt: "s"}
	if err := j.Close(want, &Totals{Processed: 7}, "{}"); err != nil || j.Cleaning != "{}" || !j.Cleaned {
		t.Errorf("%+v, %v", j, err)
	}
	if c, err := j.DecodeClosing(); err != nil || !reflect.DeepEqual(*c, want) {
		t.Errorf("%+v, %v", c, err)
	}
	if sum, err := j.RecordedTotals(); err != nil || sum.Processed != 7 {
		t.Errorf("%+v, %v", sum, err)
	}
	j.Closing = []byte("{")
	if c, err := j.DecodeClosing(); err == nil || !strings.Contains(err.Error(), "job j") {
		t.Errorf("a damaged summary: %+v, %v", c, err)
	}
}

// TestForget checks that a summary contains the hash of each job once, and only counts jobs above
// the limit.
func TestForget(t *testing.T) {
	c := Closing{Salt: "s"}
	if c.Forget(nil) || !c.Forget([]string{"a", "a", "b"}) || c.Forget([]string{"b", "a"}) ||
		!slices.Equal(c.Forgot, []string{Salted("s", "a"), Salted("s", "b")}) {
		t.Errorf("%+v", c)
	}
	var many []string
	for i := range maxForgot {
		many = append(many, fmt.Sprint("many-", i))
	}
	if !c.Forget(many) || len(c.Forgot) != maxForgot || c.More != 2 {
		t.Errorf("%d names, and %d more", len(c.Forgot), c.More)
	}
}

// TestWhatAQueryTells checks what ComesAnywhere and NamesKeys return for a job's query. A query
// that can't be decoded may select anything.
func TestWhatAQueryTells(t *testing.T) {
	for query, want := range map[string]struct{ anywhere, keys bool }{
		`{"kind":"Account"}`:                       {false, false},
		`{"kind":"Account","all_namespaces":true}`: {true, false},
		`{"kind":"ScattermapRange"}`:               {true, false},
		`{"kind":"Account","ancestor":"x"}`:        {false, true},
		`{"kind":"Account","start":"x"}`:           {false, true},
		`{"kind":"Account","end":"x"}`:             {false, true},
		`{"kind":`:                                 {true, true},
	} {
		j := &Job{Query: json.RawMessage(query)}
		if j.ComesAnywhere() != want.anywhere || j.NamesKeys() != want.keys {
			t.Errorf("%s: anywhere %v, keys %v", query, j.ComesAnywhere(), j.NamesKeys())
		}
	}
}
