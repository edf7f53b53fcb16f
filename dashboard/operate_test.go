package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// TestFailedRange follows the link in the error of a failed job to the page of the range that the
// error names.
func TestFailedRange(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 500)
	w.fails.Store(true)
	w.all.Store(true)
	if s := w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20}); s.State != mapper.StateFailed {
		t.Fatalf("%+v", s)
	}
	_, page := get(t, w.url+"job?id=j", "")
	_, head, _ := strings.Cut(page, `class="stand stand-trial"`)
	head, _, _ = strings.Cut(head, "</div>")
	if strings.Contains(head, "job j:") {
		t.Errorf("it says its own name: %s", head)
	}
	_, to, _ := strings.Cut(head, `href="`)
	to, _, _ = strings.Cut(to, `"`)
	if code, text := get(t, w.url+strings.ReplaceAll(to, "&amp;", "&"), ""); !strings.HasPrefix(to, "range?") ||
		code != http.StatusOK || !strings.Contains(text, "<h1>Range") {
		t.Errorf("%q leads to %d", to, code)
	}
}

// TestKept checks that a form with a mistake keeps the viewer's inputs, and that its error calls
// them by their labels.
func TestKept(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	for _, test := range []struct {
		form string
		code int
		want []string
	}{
		{"do=rate&id=j&rate=fast&writes=7&for=2h&ramp=on&reason=calm", 400, []string{`value="fast"`, `value="7"`,
			`value="2h"`, ` checked`, `value="calm"`, "“Entities a second”"}},
		{"do=rate&id=j&calls=many", 400, []string{`value="many"`, "“Calls a second”"}},
		{"do=resume&id=j&reason=calm", 409, []string{`value="calm"`, "succeeded", "It was not done"}},
		{"do=retry&id=j&cause=x&reason=calm", 400, []string{`name="cause" value="x"`}},
		{"do=clean-up&id=j&confirmed=no&reason=calm&record=on", 200, []string{`value="calm"`,
			`name="record" value="on" checked`}},
	} {
		code, text := post(t, w.url+"act", test.form)
		for _, want := range test.want {
			if code != test.code || !strings.Contains(text, want) {
				t.Errorf("%s: %d, does not say %q: %s", test.form, code, want, text[strings.Index(text, "<main"):])
			}
		}
	}
}

// TestEnterDoesNothing checks that Enter in the field for the reason does not act on a job,
// although Enter normally presses a form's first button.
func TestEnterDoesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.slow.Store(int64(150 * time.Millisecond))
	job := w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
	for _, at := range []string{"", "job?id=j"} {
		_, page := get(t, w.url+at, "")
		forms := strings.Split(page, "<form ")
		n := 0
		for _, form := range forms[1:] {
			form, _, _ = strings.Cut(form, "</form>")
			if !strings.Contains(form, `value="pause"`) {
				continue
			}
			n++
			_, first, _ := strings.Cut(form, "<button")
			if first, _, _ = strings.Cut(first, ">"); !strings.Contains(first, "disabled") {
				t.Errorf("%s: Enter presses <button%s>", at, first)
			}
		}
		if n != 1 {
			t.Errorf("%q: %d forms", at, n)
		}
	}
	if err := job.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLeftOut aborts several jobs. The page that asks for the confirmation leaves out the jobs that
// have ended.
func TestLeftOut(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.run(t, "over", `{"Amount": 1}`, mapper.StartOptions{})
	w.slow.Store(int64(150 * time.Millisecond))
	job := w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
	_, text := post(t, w.url+"act", "do=abort&id=runs&id=over&id=nobody")
	for want, n := range map[string]int{`name="id" value="runs"`: 1, `name="id" value="over"`: 0, "it is succeeded": 1,
		"there is no such job": 1, "2 chosen jobs are left out": 1} {
		if strings.Count(text, want) != n {
			t.Errorf("%q is %d times in %s", want, strings.Count(text, want), text[strings.Index(text, "<main"):])
		}
	}
	if _, text = post(t, w.url+"act", "do=abort&id=over&id=nobody"); !strings.Contains(text,
		"None of the chosen jobs can be aborted") || strings.Contains(text, `value="abort"`) {
		t.Errorf("%s", text[strings.Index(text, "<main"):])
	}
	if err := job.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, text = post(t, w.url+"act", "do=pause&id=over&id=runs"); !strings.Contains(text, "2 jobs were not paused") {
		t.Errorf("%s", text[strings.Index(text, "<main"):])
	}
}

// TestBudgetIsRaised raises the budget of a job that was paused because it has used up its budget.
// It follows the advice on the job's page, and then resumes the job.
func TestBudgetIsRaised(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 3000)
	job := w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 40,
		Budget: mapper.Budget{Operations: 5000}})
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StatePaused {
		t.Fatalf("%+v, %v", s, err)
	}
	_, page := get(t, w.url+"job?id=j", "")
	for _, want := range []string{"the next page may cost up to", "Budget: 5,000 operations", `name="operations"`,
		"at its end"} {
		if !strings.Contains(page, want) {
			t.Errorf("does not say %q: %s", want, page[strings.Index(page, "<main"):])
		}
	}
	set, resume := strings.Index(page, `value="budget" class="primary"`), strings.Index(page, `value="resume"`)
	if hint := strings.Index(page, "Resume alone allows 5,000 operations once more"); set < 0 || set > resume ||
		resume > hint {
		t.Errorf("Set budget is at %d, Resume at %d, and the hint at %d", set, resume, hint)
	}
	for bad, says := range map[string]string{"budget=much": "Budget in dollars",
		"budget=0":     "“Budget in dollars” is 0",
		"operations=0": "“Operations” is 0", "operations=0.5": "whole number", "operations=NaN": "whole number",
		"operations=1e300": "whole number", "budget=-1&operations=-7": "at least $", "budget=Inf": "at least $",
		"budget=-0&operations=100000": "“Budget in dollars” is 0"} {
		if code, text := post(t, w.url+"act", "do=budget&id=j&"+bad); code != http.StatusBadRequest ||
			!strings.Contains(text, says) {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
	for _, form := range []string{"do=budget&id=j&operations=100000&reason=needed", "do=resume&id=j"} {
		if code, text := post(t, w.url+"act", form); code != http.StatusSeeOther {
			t.Fatalf("%s: %d %s", form, code, text)
		}
		_, page := get(t, w.url+"job?id=j", "")
		if strings.Contains(page, "Resume alone") || strings.Contains(page, `class="primary"`) {
			t.Errorf("%s: the page still asks for a larger budget: %s", form, page[strings.Index(page, "<main"):])
		}
	}
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Written != 3000 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestUndoIsRehearsed rehearses an undo before it starts the undo. The rehearsal must show the
// entities that the undo would restore, and change nothing.
func TestUndoIsRehearsed(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20})
	_, text := post(t, w.url+"act", "do=undo&id=j&reason=wrong")
	for _, want := range []string{"has written 100 entities", "rehearsal=on", "Rehearse the undo", `value="wrong"`} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q: %s", want, text[strings.Index(text, "<main"):])
		}
	}
	do := func(form string) string {
		t.Helper()
		code, text := post(t, w.url+"act", form, "Accept", "application/json")
		if code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		jobs, _, err := w.engine.JobsPage(t.Context(), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		id := jobs[0].ID
		if _, err := w.engine.Job(id).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, page := get(t, w.serve(t, nil)+"job?id="+id, "")
		return page
	}
	if page := do("do=undo&id=j&confirmed=yes&rehearsal=on"); !strings.Contains(page,
		"it would restore 100 entities") || !strings.Contains(page, "rehearsal of the undo of <a") {
		t.Errorf("%.3000s", page[strings.Index(page, "<main"):])
	}
	var a account
	if err := w.client.Get(t.Context(), accountKey(5), &a); err != nil || a.Balance != 5 {
		t.Errorf("%+v, %v: the rehearsal has written", a, err)
	}
	if page := do("do=undo&id=j&confirmed=yes"); !strings.Contains(page, "100 entities restored") {
		t.Errorf("%.3000s", page[strings.Index(page, "<main"):])
	}
	if err := w.client.Get(t.Context(), accountKey(5), &a); err != nil || a.Balance != 4 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestListStates counts jobs by state, sorts them and selects them by time. The links between these
// lists must keep the other filters.
func TestListStates(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 200)
	w.run(t, "b-cheap", `{"Amount": 1}`, mapper.StartOptions{PageSize: 200})
	w.fails.Store(true)
	w.run(t, "a-dear", `{"Amount": 1}`, mapper.StartOptions{PageSize: 5, AllowOverlap: true})
	w.slow.Store(int64(100 * time.Millisecond))
	if err := w.start(t, "c-paused", `{"Amount": 1}`,
		mapper.StartOptions{PageSize: 10, AllowOverlap: true}).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := w.engine.Job("a-dear").Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := url.QueryEscape(s.Created.Format(time.RFC3339Nano))
	for filter, want := range map[string]string{"": "c-paused a-dear b-cheap", "?sort=id": "a-dear b-cheap c-paused",
		"?sort=state": "c-paused b-cheap a-dear", "?sort=failures": "a-dear c-paused b-cheap",
		"?from=" + at: "c-paused a-dear", "?before=" + at: "b-cheap", "?from=" + at + "&sort=id": "a-dear c-paused",
		"?from=2020-01-01&before=2020-01-02T10:30": "", "?name=dear&sort=cost": "a-dear"} {
		_, text := get(t, w.url+filter, "application/json")
		var list struct {
			Jobs   []mapper.JobInfo
			Counts map[mapper.State]int64
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, j := range list.Jobs {
			ids = append(ids, j.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s", filter, got, want)
		}
		if filter == "" && (list.Counts["paused"] != 1 || list.Counts["succeeded"] != 1 ||
			list.Counts["succeeded with failures"] != 1 || list.Counts["running"] != 0) {
			t.Errorf("counts %v", list.Counts)
		}
	}
	_, page := get(t, w.url+"?mapper=credit&from=2020-01-01&sort=cost", "")
	for _, want := range []string{
		`href="./?all=false&amp;from=2020-01-01&amp;mapper=credit&amp;sort=cost&amp;state=paused"`,
		`paused <span class="n">1</span>`, `aria-sort="descending"`,
		`href="./?all=false&amp;from=2020-01-01&amp;mapper=credit&amp;sort=failures"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the list has no %s", want)
		}
	}
	if strings.Index(page, `class="many"`) > strings.Index(page, "<tbody>") {
		t.Error("the actions on several jobs are after the rows")
	}
	for _, bad := range []string{"?from=yesterday", "?before=2020", "?sort=colour"} {
		if code, text := get(t, w.url+bad, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %.200s", bad, code, text)
		}
	}
}

// TestDestroyed starts a job that deletes entities. The form must require that the viewer enters
// the planned number of entities.
func TestDestroyed(t *testing.T) {
	testflag.Sequential(t)
	w := newEngine(t)
	var err error
	if w.engine, err = mapper.NewEngine(w.client, w.engine.Queue(), &mapper.EngineOptions{Mappers: prebuilt.Mappers(),
		Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.refuses.Store(true)
	w.putAccounts(t, 1234)
	if _, err := w.client.Put(t.Context(), datastore.IDKey("a,b", 1, nil), &account{}); err != nil {
		t.Fatal(err)
	}
	w.url = w.serve(t, &dashboard.Options{})
	_, page := get(t, w.url+"start?mapper=delete", "")
	for _, want := range []string{"Deletes entities.", `<option value="Account">`, `list="kinds"`,
		`<option value="&#34;a,b&#34;">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the form has no %s", want)
		}
	}
	if strings.Contains(page, `<option value="Scattermap`) {
		t.Error("the form offers the kinds of our records")
	}
	planned, text := planned(t, w.url, "mapper", "delete")
	if !strings.Contains(text, `name="count"`) {
		t.Errorf("%s", text[strings.Index(text, `id="plan"`):])
	}
	for _, count := range []string{"", "1235", "all"} {
		_, text := post(t, w.url+"start", form("id", "p", "mapper", "delete", "planned", planned, "count", count))
		if !strings.Contains(text, "this is not the number of entities") || !strings.Contains(text, `name="planned"`) {
			t.Errorf("%q: %s", count, text[strings.Index(text, `id="plan"`):])
		}
	}
	if _, err := w.engine.Job("p").Status(t.Context()); err == nil {
		t.Fatal("it is started")
	}
	if code, text := post(t, w.url+"start", form("id", "p", "mapper", "delete", "planned", planned, "count",
		"1,234")); code != http.StatusSeeOther {
		t.Errorf("%d %s", code, text)
	}
	if _, err := w.engine.Job("p").Status(t.Context()); err != nil {
		t.Error(err)
	}
	_, text = post(t, w.url+"start", form("id", "q", "mapper", "delete", "how", "rehearsal", "do", "plan"))
	if strings.Contains(text, `name="count"`) {
		t.Error("a rehearsal wants a number")
	}
	if _, err := fmt.Sscan(strings.Fields(planned)[1], new(int)); err != nil {
		t.Error(err)
	}
}

// TestUnexpected causes an internal error. The page must show only an ID, the log must have the
// error with this ID, and the form must keep the inputs.
func TestUnexpected(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 10)
	var log strings.Builder
	url := w.serve(t, &dashboard.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	w.client.Close()
	for page, send := range map[string]func() (int, string){
		"job":  func() (int, string) { return get(t, url+"job?id=j", "") },
		"act":  func() (int, string) { return post(t, url+"act", "do=rate&id=j&rate=1234&reason=calm") },
		"form": func() (int, string) { return post(t, url+"start", form("id", "j", "do", "plan", "reason", "calm")) },
	} {
		log.Reset()
		code, text := send()
		_, id, _ := strings.Cut(text, "under the ID ")
		if len(id) < 8 || code != http.StatusInternalServerError || !strings.Contains(log.String(), "id="+id[:8]) ||
			strings.Contains(text, "rpc error") {
			t.Errorf("%s: %d, %.8s, log %s: %s", page, code, id, log.String(), text[strings.Index(text, "<main"):])
		}
		if page != "job" && !strings.Contains(text, `value="calm"`) {
			t.Errorf("%s: the form is gone: %s", page, text[strings.Index(text, "<main"):])
		}
	}
	// A client that has gone is no error of the service.
	log.Reset()
	h := dashboard.NewHandler(w.engine, &dashboard.Options{Allow: auth.Anybody,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequestWithContext(ctx, http.MethodGet, "/dashboard/job?id=j", nil))
	if strings.Contains(log.String(), "ERROR") || !strings.Contains(log.String(), "INFO") {
		t.Errorf("a client has gone, and the log has %q", log.String())
	}
}
