package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// sentBy returns the fields that a browser sends for the form that starts a job.
func sentBy(t *testing.T, page string) url.Values {
	t.Helper()
	has := func(n *html.Node, key string) bool {
		return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == key })
	}
	q := make(url.Values)
	line := strings.NewReplacer("\r", "", "\n", "") // an input has one line
	for _, n := range elements(t, page) {
		name, value := attribute(n, "name"), attribute(n, "value")
		kind := attribute(n, "type")
		switch {
		case name == "":
		case n.Data == "textarea" && n.FirstChild != nil:
			q.Set(name, n.FirstChild.Data)
		case n.Data == "input" && (kind == "checkbox" || kind == "radio"):
			if has(n, "checked") {
				q.Set(name, value)
			}
		case n.Data == "input":
			q.Set(name, line.Replace(value))
		case n.Data == "select":
			for o := range n.Descendants() {
				if o.Data == "option" && has(o, "selected") {
					q.Set(name, attribute(o, "value"))
				}
			}
		}
	}
	return q
}

// TestClone opens the form for each of several jobs, and sends it with another ID. The new job must
// have the old one's mapper, query, parameters and settings, except for what the form says.
func TestClone(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 50)
	top := 0
	all := TextParams{Amount: -7, Note: "  <b> & \"it\"", Extra: Extra{Dry: true, Tags: []string{"a", "b c"},
		Wait: 90 * time.Minute, Since: time.Date(2026, 10, 24, 12, 0, 0, 5000, time.UTC), Top: &top}}
	key := func(id int64) *datastore.Key { return datastore.IDKey("Account", id, nil) }
	query, none, usual := mapper.Query{Kind: "Account"}, struct{}{}, mapper.StartOptions{}
	where := func(filters ...mapper.Filter) mapper.Query { return mapper.Query{Kind: "Account", Filters: filters} }
	for name, test := range map[string]struct {
		mapper  string
		query   mapper.Query
		params  any
		options mapper.StartOptions
		lost    []string // what the form says about what it lacks
	}{
		"defaults":   {"credit", query, TextParams{Amount: 1}, mapper.StartOptions{}, nil},
		"parameters": {"credit", query, all, mapper.StartOptions{}, nil},
		"two lines": {"credit", query, TextParams{Note: "one\ntwo", Extra: Extra{Tags: []string{" a"}}}, usual,
			[]string{`parameter note: "one\ntwo"`, `parameter extra.tags: [" a"]`}},
		"a rehearsal": {"credit", query, TextParams{}, mapper.StartOptions{DryRun: true}, nil},
		"settings": {"credit", query, TextParams{}, mapper.StartOptions{PageSize: 20, PageTime: 2 * time.Second,
			ExpectedWorkers: 3, Rate: mapper.Rate{EntitiesPerSecond: 5000.5, CallsPerSecond: 7, Ramp: true},
			Background: true, Budget: mapper.Budget{Dollars: 1.25}, EntityTimeout: 5 * time.Second, Concurrency: 4,
			Retries: mapper.RetryPolicy{MaxAttempts: 3}, FailureLimit: mapper.Unlimited, AllowOverlap: true,
			Retain: 240 * time.Hour}, nil},
		"settings without inputs": {"credit", query, TextParams{}, mapper.StartOptions{FailureShare: 0.5,
			Rate: mapper.Rate{WritesPerSecond: 900}, Budget: mapper.Budget{Operations: 50_000},
			Retries: mapper.RetryPolicy{MinBackoff: 2 * time.Second, MaxBackoff: time.Minute}},
			[]string{"failure share: 0.5", "rate writes: 900", "budget operations: 50000", "retries first: 2s",
				"retries max: 1m0s"}},
		"kinds and namespaces": {"look", mapper.Query{Kinds: []string{"Account", "a, \"b\""},
			Namespaces: []string{"", "x"}},
			none, mapper.StartOptions{AllowEmpty: true}, nil},
		"all namespaces": {"look", mapper.Query{Kind: "Account", AllNamespaces: true}, none, usual, nil},
		"order":          {"look", mapper.Query{Kind: "Account", ShardBy: "Balance"}, none, usual, nil},
		"only keys":      {"look", mapper.Query{Kind: "Account", KeysOnly: true}, none, usual, nil},
		"keys": {"look", mapper.Query{Kind: "Account", Start: key(2), End: key(40)}, none, mapper.StartOptions{},
			nil},
		"filters": {"look", where(mapper.Where("Balance", ">=", int64(3)),
			mapper.Where("na me", "=", "it's \"so\"\n")), none,
			mapper.StartOptions{AllowEmpty: true}, nil},
		"more filters": {"look", where(mapper.Where("a.b", "in", []any{int64(1), 2.5, true, nil})), none,
			mapper.StartOptions{AllowEmpty: true}, nil},
		"values": {"look", where(mapper.Where("a", "=", []byte{1, 255}), mapper.Where("b", "=", key(7)),
			mapper.Where("c", "<", time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC))), none,
			mapper.StartOptions{AllowEmpty: true}, nil},
		"a filter of any type": {"look", where(mapper.Filter{Property: "Balance", Op: "=", Value: "x",
			AllowAnyType: true}),
			none, usual, []string{`filter: Balance = "x"`}},
		"a canary":  {"look", where(mapper.Share(0, 12_500, 100_000)), none, usual, nil},
		"the rest":  {"look", where(mapper.Share(2500, 100_000, 100_000)), none, usual, nil},
		"an eighth": {"look", where(mapper.Share(0, 1, 8)), none, usual, nil},
		"the middle": {"look", where(mapper.Share(1, 2, 4)), none, usual,
			[]string{"filter: a share of the keys, 1-2/4"}},
		"a third": {"look", where(mapper.Share(0, 1, 3)), none, usual,
			[]string{"filter: a share of the keys, 0-1/3"}},
		"a rehearsed canary": {"credit", where(mapper.Share(0, 1, 8)), TextParams{}, mapper.StartOptions{DryRun: true},
			[]string{"filter: a share of the keys, 0-1/8"}},
	} {
		id := strings.ReplaceAll(name, " ", "-")
		test.options.ID = id
		params, err := json.Marshal(test.params)
		if err != nil {
			t.Fatal(err)
		}
		job, err := w.engine.StartByName(t.Context(), test.mapper, test.query, params, &test.options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		old, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, page := get(t, w.url+"job?id="+id, "")
		if !strings.Contains(page, `href="start?clone=`+id+`"`) {
			t.Errorf("%s: the job's page has no link: %s", name, page)
		}
		code, page := get(t, w.url+"start?clone="+id, "")
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", name, code, page)
			continue
		}
		checkLost(t, name, page, test.lost)
		q := sentBy(t, page)
		if q.Get("id") == "" || q.Get("id") == id || q.Get("clone") != id {
			t.Errorf("%s: the form has %v", name, q)
		}
		q.Set("allow_empty", "on") // a job's record does not have this setting
		q.Set("do", "plan")
		if code, page := post(t, w.url+"start", q.Encode()); code != http.StatusOK {
			t.Errorf("%s: plan: %d %s", name, code, page[max(0, strings.Index(page, `id="plan"`)):])
		} else {
			checkLost(t, name+", planned", page, test.lost)
		}
		q.Set("do", "start")
		q.Set("id", id+"-2")
		if code, text := post(t, w.url+"start", q.Encode(), "Accept", "application/json"); code != http.StatusOK {
			t.Errorf("%s: %v: %d %s", name, q, code, text)
			continue
		}
		again, err := w.engine.Job(id + "-2").Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again.Settings.ID = id
		if name == "an eighth" { // the form writes the same share as 12.5%
			old.Query = where(mapper.Share(0, 12_500, 100_000))
		}
		diff := cmp.Diff([]any{old.Mapper, old.Query, string(old.Params), old.Settings, old.Queue},
			[]any{again.Mapper, again.Query, string(again.Params), again.Settings, again.Queue})
		if (diff != "") != (len(test.lost) > 0) {
			t.Errorf("%s: -old +clone: %s", name, diff)
		}
		if now, err := job.Status(t.Context()); err != nil || !cmp.Equal(now.Settings, old.Settings) {
			t.Errorf("%s: the old job has changed: %+v, %v", name, now, err)
		}
	}
}

// checkLost checks what a form says about what it lacks of the job.
func checkLost(t *testing.T, name, page string, want []string) {
	t.Helper()
	var got []string
	in := false
	for _, n := range elements(t, page) {
		if n.Data == "strong" && n.FirstChild != nil {
			in = n.FirstChild.Data == "Not filled in:"
		}
		if in && n.Data == "li" {
			var text strings.Builder
			for d := range n.Descendants() {
				if d.Type == html.TextNode {
					text.WriteString(d.Data)
				}
			}
			got = append(got, text.String())
		}
	}
	slices.Sort(got)
	want = slices.Clone(want)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: the form lacks %q, want %q", name, got, want)
	}
}

// TestCloneRefused checks the form for jobs that it can't start again, and for viewers who may not
// see a job's parameters.
func TestCloneRefused(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 5)
	job, err := w.engine.StartByName(t.Context(), "credit", mapper.Query{Kind: "Account",
		Filters: []mapper.Filter{mapper.Where("Balance", ">=", int64(0))}}, []byte(`{"Amount": 4711}`),
		&mapper.StartOptions{ID: "spring"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := job.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Undo(t.Context(), &mapper.UndoOptions{ID: "undo-spring"}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"undo-spring": http.StatusBadRequest, "nobody": http.StatusNotFound} {
		if code, page := get(t, w.url+"start?clone="+id, ""); code != want {
			t.Errorf("%s: %d %s", id, code, page)
		}
	}
	if _, page := get(t, w.url+"job?id=undo-spring", ""); strings.Contains(page, "start?clone=") {
		t.Errorf("an undo's page has the link: %s", page)
	}
	readOnly := w.serve(t, &dashboard.Options{ReadOnly: true})
	if _, page := get(t, readOnly+"job?id=spring", ""); strings.Contains(page, "start?clone=") {
		t.Errorf("a read-only page has the link: %s", page)
	}
	if _, page := get(t, readOnly+"start?clone=spring", ""); strings.Contains(page, "4711") {
		t.Errorf("a read-only form: %s", page)
	}
	hidden := w.serve(t, &dashboard.Options{Redact: func(what dashboard.TextKind, text string) string {
		if what == dashboard.TextParams {
			return "hidden"
		}
		return text
	}})
	code, page := get(t, hidden+"start?clone=spring", "")
	if code != http.StatusOK || strings.Contains(page, "4711") || strings.Contains(page, "Balance") {
		t.Errorf("a redacted form: %d %s", code, page)
	}
	checkLost(t, "redacted", page, []string{"query: hidden on this dashboard", "parameters: hidden on this dashboard"})
	if jobs, _, err := w.engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) != 2 {
		t.Errorf("%s, %v", fmt.Sprint(jobs), err)
	}
}
