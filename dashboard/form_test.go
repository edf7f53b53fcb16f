package dashboard_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/setting/settingtest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// form returns the body of a POST that starts a job of the mapper credit. The pairs are names and
// values of inputs that it changes or adds.
func form(pairs ...string) string {
	q := url.Values{"mapper": {"credit"}, "kind": {"Account"}, "how": {"all"}, "do": {"start"}, "p.Amount": {"1"}}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	if q.Get("mapper") != "credit" {
		q.Del("p.Amount")
	}
	return q.Encode()
}

// TestFormParams starts jobs with parameters of all types, and checks that each job gets the
// entered values.
func TestFormParams(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 1)
	top := 5
	since := time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)
	for i, test := range []struct {
		entered []string
		want    TextParams
	}{
		{[]string{"p.Amount", "-7"}, TextParams{Amount: -7}},
		{[]string{"p.Amount", "0", "p.note", "  as it is "}, TextParams{Note: "  as it is "}},
		{[]string{"p.extra.dry", "on", "p.extra.tags", "a\r\n b \n\nc", "p.extra.wait", "1h30m", "p.extra.since",
			"2026-10-24T12:00:00Z", "p.extra.top", "5"},
			TextParams{Amount: 1, Extra: Extra{Dry: true, Tags: []string{"a", "b", "c"}, Wait: 90 * time.Minute,
				Since: since, Top: &top}}},
	} {
		id := fmt.Sprint("form-", i)
		if code, text := post(t, w.url+"start", form(append(test.entered, "id", id)...), "Accept",
			"application/json"); code != http.StatusOK {
			t.Errorf("%q: %d %s", test.entered, code, text)
			continue
		}
		s, err := w.engine.Job(id).Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got TextParams
		if err := json.Unmarshal(s.Params, &got); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: %s, %v, want %+v", test.entered, s.Params, err, test.want)
		}
	}
}

// TestFormSettings starts jobs by the inputs that choose entities, attempts and times. It compares
// the jobs' queries and settings with what was entered.
func TestFormSettings(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 1)
	for i, test := range []struct {
		entered []string
		query   mapper.Query
		options mapper.StartOptions
	}{
		{[]string{"kind", "Account, Ghost"}, mapper.Query{Kinds: []string{"Account", "Ghost"}}, mapper.StartOptions{}},
		{[]string{"namespace", "b,a"}, mapper.Query{Kind: "Account", Namespaces: []string{"a", "b"}},
			mapper.StartOptions{}},
		{[]string{"all_namespaces", "on"}, mapper.Query{Kind: "Account", AllNamespaces: true}, mapper.StartOptions{}},
		{[]string{"shard_by", "Balance"}, mapper.Query{Kind: "Account", ShardBy: "Balance"}, mapper.StartOptions{}},
		{[]string{"keys_only", "on"}, mapper.Query{Kind: "Account", KeysOnly: true}, mapper.StartOptions{}},
		{[]string{"attempts", "7", "page_time", "2s", "entity_timeout", "5s"}, mapper.Query{Kind: "Account"},
			mapper.StartOptions{Retries: mapper.RetryPolicy{MaxAttempts: 7}, PageTime: 2 * time.Second,
				EntityTimeout: 5 * time.Second}},
	} {
		id := fmt.Sprint("set-", i)
		entered := form(append(test.entered, "id", id, "allow_empty", "on", "beside", "on")...)
		code, text := post(t, w.url+"start", entered, "Accept", "application/json")
		if code != http.StatusOK {
			t.Errorf("%q: %d %s", test.entered, code, text)
			continue
		}
		s, err := w.engine.Job(id).Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := test.options
		if got := s.Settings; !reflect.DeepEqual(s.Query, test.query) || want.PageTime > 0 &&
			(got.PageTime != want.PageTime || got.EntityTimeout != want.EntityTimeout ||
				got.Retries.MaxAttempts != want.Retries.MaxAttempts) {
			t.Errorf("%q: %+v, %+v", test.entered, s.Query, got)
		}
	}
}

// TestFormRefused posts forms with a mistake. The page must show an error with the field's name,
// keep the inputs, and start no job.
func TestFormRefused(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 1)
	for _, test := range []struct {
		entered []string
		want    string
	}{
		{[]string{"p.Amount", ""}, "the parameter Amount: it is missing"},
		{[]string{"p.Amount", "1.5"}, "Amount"}, {[]string{"p.Amount", "99999999999999999999"}, "Amount"},
		{[]string{"p.Amount", "9223372036854775808"}, "does not fit"},
		{[]string{"p.extra.wait", "soon"}, "extra.wait"}, {[]string{"p.extra.since", "yesterday"}, "extra.since"},
		{[]string{"p.extra.top", "x"}, "extra.top"},
		{[]string{"kind", ""}, "kind"}, {[]string{"id", ""}, "ID"}, {[]string{"id", "a b"}, "“ID”"},
		{[]string{"filters", "Balance <"}, "Balance &lt;"},
		{[]string{"filters", "a = 1 OR b = 2"}, "no OR"}, {[]string{"how", "canary", "share", "0.01%"}, "0.01%"},
		{[]string{"how", "canary", "share", ""}, "share"}, {[]string{"how", "x"}, "how"},
		{[]string{"page_size", "5000"}, "“Page size”"}, {[]string{"page_size", "x"}, "“Page size”"},
		{[]string{"page_size", "1.5"}, "“Page size”"}, {[]string{"workers", "-1"}, "“Workers”"},
		{[]string{"concurrency", "5000"}, "“Concurrency”"},
		{[]string{"rate", "NaN"}, "“Entities a second”"}, {[]string{"rate", "-2"}, "“Entities a second”"},
		{[]string{"calls", "-2"}, "“Calls a second”"},
		{[]string{"budget", "-1"}, "“Budget in dollars”"},
		{[]string{"queue", "nowhere"}, "nowhere"}, {[]string{"failure_limit", "-2"}, "“Failure limit”"},
		{[]string{"failure_limit", "0"}, "“Failure limit” is 0"}, {[]string{"workers", "0"}, "“Workers” is 0"},
		{[]string{"rate", "0"}, "“Entities a second” is 0"}, {[]string{"calls", "-0"}, "“Calls a second” is 0"},
		{[]string{"budget", "0.0"}, "“Budget in dollars” is 0"},
		{[]string{"per_entity", "0s"}, "“Time per entity” is 0"},
		{[]string{"kind", "Nothing"}, "set “Allow a kind without entities”"},
		{[]string{"per_entity", "fast"}, "“Time per entity”"},
		{[]string{"kind", "__x__"}, "__x__"},
		{[]string{"kind", "a,\""}, "“Kind” is &#34;a,\\&#34;&#34;: it has to be names with commas between them"},
		{[]string{"namespace", "a", "all_namespaces", "on"}, "set only one of “Namespace”"},
		{[]string{"read_time", "today"}, "“Read time”"},
		{[]string{"read_time", "0001-01-01T00:00:00Z"}, "“Read time”"}, {[]string{"kind", "a\nb"}, "“Kind”"},
		{[]string{"page_time", "5"}, "“Page time” is &#34;5&#34;"},
		{[]string{"page_time", "-1s"}, "“Page time” has to be"},
		{[]string{"kind", "Account,"}, "“Kind”"}, {[]string{"namespace", "a b"}, "“Namespace”"},
		{[]string{"namespace", "a,ü"}, "“Namespace”"},
		{[]string{"shard_by", "__x__"}, "“In the order of a property”"},
		{[]string{"attempts", "1.5"}, "“Attempts”"},
		{[]string{"attempts", "0"}, "“Attempts” is 0"},
		{[]string{"attempts", "101"}, "“Attempts” has to be"}, {[]string{"page_time", "1h"}, "“Page time” has to be"},
		{[]string{"entity_timeout", "0s"}, "“Time limit of an entity” is 0"},
		{[]string{"retain", "forever"}, "“Keep records”"}, {[]string{"retain", "1h"}, "“Keep records” has to be"},
		{[]string{"retain", "7d"}, "“Keep records” has to be"},
	} {
		for _, do := range []string{"plan", "start"} {
			entered := append([]string{"id", "refused", "do", do, "reason", "it was entered"}, test.entered...)
			q, err := url.ParseQuery(form(entered...))
			if err != nil {
				t.Fatal(err)
			}
			code, text := post(t, w.url+"start", q.Encode())
			if do == "start" { // the viewer has seen a plan, and has not changed the form since
				q.Set("planned", "x")
				code, text = post(t, w.url+"start", q.Encode())
			}
			if code == http.StatusOK && do == "plan" || strings.Contains(text, "this is the new plan") {
				continue // only a start detects this error, and a plan does not
			}
			_, said, _ := strings.Cut(text, `role="alert"`)
			said, _, _ = strings.Cut(said, "</div>")
			if found := settingtest.GoNames(said); len(found) > 0 {
				t.Errorf("%s %q: %s has the Go names %q", do, test.entered, said, found)
			}
			if code < 400 || code >= 500 || !strings.Contains(text, test.want) ||
				!strings.Contains(text, "it was entered") {
				t.Errorf("%s %q: %d, does not say %q: %.1500s", do, test.entered, code, test.want,
					text[max(0, strings.Index(text, `id="plan"`)):])
			}
		}
		if code, text := post(t, w.url+"start", form(append([]string{"id", "refused"}, test.entered...)...), "Accept",
			"application/json"); code < 400 && test.entered[0] != "per_entity" {
			t.Errorf("%q is started: %d %s", test.entered, code, text)
		}
	}
	if jobs, _, err := w.engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) > 0 {
		t.Errorf("%+v, %v", jobs, err)
	}
}

// planned posts a form, so that the dashboard plans its job. It returns the field by which a start
// proves that the viewer has seen the plan, and the page.
func planned(t *testing.T, url string, entered ...string) (planned, text string) {
	t.Helper()
	code, text := post(t, url+"start", form(append([]string{"id", "p", "do", "plan"}, entered...)...))
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for _, n := range elements(t, text) {
		if attribute(n, "name") == "planned" {
			planned = attribute(n, "value")
		}
	}
	return planned, text
}

// TestPrebuiltForms plans and starts a job of every prebuilt mapper by its form. If the job
// destroys entities, it also enters their number.
func TestPrebuiltForms(t *testing.T) {
	testflag.Sequential(t)
	entered := map[string][]string{
		"count": {"p.by", "Balance"}, "check": {"p.condition", "Balance >= 0"}, "touch": {}, "delete": {"kind", "Gone"},
		"set":  {"p.property", "plan", "p.value", `"free"`},
		"copy": {"p.kind", "Copies"}, "rename": {"p.from", "plan", "p.to", "tariff"},
		"drop":                     {"p.properties", "tariff\nlimits"},
		"erase":                    {"kind", "", "namespace", "acme"},
		"erase a tenant":           {"kind", "", "p.property", "tenant", "p.value", `"b"`},
		"erase a tenant of a kind": {"p.property", "tenant", "p.value", "7", "p.words", "bob@example.com\nBob"},
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := newEngine(t)
	all := append(prebuilt.Mappers(), prebuilt.Erase(prebuilt.EraseOptions{Key: key,
		Keep: func(context.Context, string, []byte) error { return nil }}))
	if w.engine, err = mapper.NewEngine(w.client, w.engine.Queue(), &mapper.EngineOptions{Mappers: all,
		Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.refuses.Store(true)
	url := w.serve(t, nil)
	w.putAccounts(t, 5)
	for _, key := range []*datastore.Key{{Kind: "Gone", ID: 1}, {Kind: "Account", ID: 1, Namespace: "acme"}} {
		if _, err := w.client.Put(t.Context(), key, &account{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range w.engine.Mappers() {
		if entered[m.Name] == nil {
			t.Errorf("nothing is entered for %s", m.Name)
		}
	}
	id := 0
	for _, name := range slices.Sorted(maps.Keys(entered)) {
		id++
		m, _, _ := strings.Cut(name, " ")
		if _, page := get(t, url+"start?mapper="+m, ""); strings.Contains(page, "all_kinds") ||
			strings.Contains(page, `list="kinds" required`) == (m == "erase") {
			t.Errorf("%s: %s", name, page[strings.Index(page, "<main"):])
		}
		pairs := append([]string{"mapper", m, "id", fmt.Sprint("job-", id), "beside", "on"}, entered[name]...)
		sent, page := planned(t, url, pairs...)
		_, number, _ := strings.Cut(sent, " ")
		if code, text := post(t, url+"start", form(append(pairs, "planned", sent, "count", number)...)); sent == "" ||
			code != http.StatusSeeOther {
			t.Errorf("%s: %d %s%s", name, code, page[strings.Index(page, "<main"):],
				text[max(0, strings.Index(text, "<main")):])
			continue
		}
		job := w.engine.Job(fmt.Sprint("job-", id))
		if s, err := job.Status(t.Context()); err != nil || s.Mapper != m || s.State != mapper.StateRunning {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if err := job.Abort(t.Context()); err != nil { // an erasure requires that all other jobs have ended
			t.Error(err)
		}
		// The form for the job's clone has all that the job has, and plans the same job.
		_, page = get(t, url+"start?clone="+job.ID, "")
		checkLost(t, name, page, nil)
		again := sentBy(t, page)
		again.Set("do", "plan")
		for i := 4; i < len(pairs); i += 2 { // after the mapper and the ID
			if got := again.Get(pairs[i]); got != pairs[i+1] {
				t.Errorf("%s: the clone's form has %s = %q, want %q", name, pairs[i], got, pairs[i+1])
			}
		}
		if code, text := post(t, url+"start", again.Encode()); code != http.StatusOK {
			t.Errorf("%s: its clone: %d %s", name, code, text[max(0, strings.Index(text, `id="plan"`)):])
		}
	}
}

// TestPlanBeforeStart checks that the form starts a job only after it has shown the plan. If the
// inputs have changed since the plan, the form plans the job again.
func TestPlanBeforeStart(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 1000)
	planned, text := planned(t, w.url)
	if planned == "" || !strings.Contains(text, "<strong>1,000</strong>") {
		t.Errorf("planned %q: %s", planned, text)
	}
	for _, entered := range [][]string{{}, {"planned", planned, "p.Amount", "1000"},
		{"planned", planned, "how", "canary", "share", "10%"}} {
		code, text := post(t, w.url+"start", form(append([]string{"id", "p"}, entered...)...))
		if code != http.StatusOK || !strings.Contains(text, `name="planned"`) {
			t.Errorf("%q is not planned first: %d", entered, code)
		}
		if _, err := w.engine.Job("p").Status(t.Context()); err == nil {
			t.Fatalf("%q is started", entered)
		}
	}
	if code, text := post(t, w.url+"start", form("id", "p", "planned", planned, "reason",
		"said later")); code != http.StatusSeeOther {
		t.Errorf("%d %s", code, text)
	}
	if s, err := w.engine.Job("p").Wait(t.Context()); err != nil || s.Processed != 1000 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestPlanOfEachWay plans and starts a rehearsal, a canary (a part of the job that is tried first),
// and the rest.
func TestPlanOfEachWay(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 1000)
	for _, test := range []struct {
		how, share   string
		least, most  int64
		mapper       string
		wrote        bool
		alsoHasTitle string
	}{{"rehearsal", "", 1000, 1000, "rehearsal:credit", false, "Start the rehearsal"},
		{"canary", "10%", 30, 200, "credit", true, "Start the canary"},
		{"rest", "10%", 800, 970, "credit", true, "Start the job"}} {
		planned, text := planned(t, w.url, "how", test.how, "share", test.share, "id", test.how)
		var answer struct{ Plan mapper.Estimate }
		_, said := post(t, w.url+"start", form("id", test.how, "how", test.how, "share", test.share, "do", "plan"),
			"Accept", "application/json")
		if err := json.Unmarshal([]byte(said), &answer); err != nil ||
			answer.Plan.Usage.Writes < test.least == test.wrote {
			t.Errorf("%s: %s, %v", test.how, said, err)
		}
		if !strings.Contains(text, test.alsoHasTitle) {
			t.Errorf("%s: %s", test.how, text)
		}
		if code, text := post(t, w.url+"start", form("id", test.how, "how", test.how, "share", test.share, "planned",
			planned)); code != http.StatusSeeOther {
			t.Fatalf("%s: %d %s", test.how, code, text)
		}
		s, err := w.engine.Job(test.how).Wait(t.Context())
		if err != nil || s.Mapper != test.mapper || s.Processed < test.least || s.Processed > test.most {
			t.Errorf("%s: %+v, %v", test.how, s, err)
		}
	}
}

type (
	// Odd is a struct of parameters whose types have no input of their own.
	Odd struct {
		Embedded
		Map  map[string]int `json:"map,omitempty"`
		Any  any            `json:"any,omitempty"`
		Deep *Odd           `json:"deep,omitempty"`
		*Pointed
		Quoted int64   `json:"quoted,string"`
		Text   string  `json:"text,string,omitempty"`
		Maybe  *bool   `json:"maybe,omitempty"`
		Small  int8    `json:"small"`
		Bytes  []byte  `json:"bytes,omitempty"`
		Ratio  float32 `json:"ratio"`
		Hidden string  `json:"-"`
		Dash   string  `json:"-,"` //nolint:staticcheck // the field's name is "-"
		inner  int
	}
	// Pointed embeds parameters by a pointer.
	Pointed struct {
		Far string `json:"far,omitempty"`
	}
	// Embedded has fields with the same names as fields of the struct that embeds it.
	Embedded struct {
		Name Named `json:"name"`
	}
	// Named is a string type with its own text encoding.
	Named string
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Named) UnmarshalText(b []byte) error {
	if strings.Contains(string(b), "bad") {
		return fmt.Errorf("%q is a bad name", b)
	}
	*n = Named(b)
	return nil
}

// TestFormOddParams fills in forms for parameters of unusual types, and for the parameters of the
// prebuilt mappers.
func TestFormOddParams(t *testing.T) {
	testflag.Sequential(t)
	w := newEngine(t)
	odd := mapper.Visit("odd", func(context.Context, *mapper.Entity[account], Odd) error { return nil })
	list := mapper.Visit("list", func(context.Context, *mapper.Entity[account], []int) error { return nil })
	var err error
	if w.engine, err = mapper.NewEngine(w.client, w.engine.Queue(),
		&mapper.EngineOptions{Mappers: append(prebuilt.Mappers(), odd, list),
			Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.refuses.Store(true)
	w.putAccounts(t, 1)
	w.url = w.serve(t, nil)
	odds := func(pairs ...string) []string { // returns a form with the required fields and the given ones
		return append([]string{"p.quoted", "1", "p.small", "1", "p.ratio", "1"}, pairs...)
	}
	for _, test := range []struct {
		mapper  string
		entered []string
		want    string // the parameters that the job gets, or a part of the error
	}{
		{"odd", []string{"p.name", "ann", "p.map", `{"a": 1}`, "p.any", `[1, "x"]`, "p.deep",
			`{"name": "b", "quoted": "2", "small": 3, "ratio": 0}`, "p.quoted", "12", "p.small", "-128", "p.bytes",
			`"AAE="`, "p.ratio", "0.5", "p.-", "d", "p.text", "te\"xt", "p.maybe", "false", "p.far", "off"},
			`{"name":"ann","map":{"a":1},"any":[1,"x"],"deep":{"name":"b","quoted":"2","small":3,"ratio":0,"-":""},` +
				`"far":"off","quoted":"12","text":"\"te\\\"xt\"","maybe":false,"small":-128,"bytes":"AAE=",` +
				`"ratio":0.5,"-":"d"}`},
		{"odd", []string{"p.name", "bad"}, "bad name"}, {"odd", []string{"p.nomen", "ann"}, "nomen"},
		{"odd", odds("p.small", "128"), "p.small"}, {"odd", []string{"p.map", "{"}, "p.map"},
		{"odd", []string{"p.map", `{"a": "x"}`}, "p.map"},
		{"list", []string{"p.", "[1, 2]"}, "[1,2]"}, {"list", []string{"p.", "x"}, "is no JSON"},
		{"odd", odds("p.ratio", "9007199254740993"), "is no float"}, {"odd", odds("p.any",
			"[9007199254740993]"), "float64"},
		{"odd", []string{"p.map", `{"a": 1, "a": 2}`}, "comes twice"}, {"set", []string{"p.property", "plan"},
			"is missing"},
		{"count", []string{"p.by", "__key__"}, "reserved"},
		{"set", []string{"p.property", "plan", "p.value", `"gold"`, "how", "rehearsal"},
			`{"property":"plan","value":"gold"}`},
		{"drop", []string{"p.properties", "a\nb", "how", "rehearsal"}, `{"properties":["a","b"]}`},
		{"touch", []string{"how", "rehearsal"}, "{}"},
	} {
		id := fmt.Sprint("job-", len(test.want), "-", test.mapper)
		code, text := post(t, w.url+"start",
			form(append([]string{"mapper", test.mapper, "id", id}, test.entered...)...), "Accept", "application/json")
		if code != http.StatusOK {
			if !strings.Contains(text, strings.TrimPrefix(test.want, "p.")) || code != http.StatusBadRequest {
				t.Errorf("%s %q: %d %s, want %s", test.mapper, test.entered, code, text, test.want)
			}
			continue
		}
		s, err := w.engine.Job(id).Status(t.Context())
		if err != nil || string(s.Params) != test.want {
			t.Errorf("%s %q: %s, %v, want %s", test.mapper, test.entered, s.Params, err, test.want)
		}
		if code, page := get(t, w.url+"start?mapper="+test.mapper, ""); code != http.StatusOK ||
			strings.Contains(page, "hidden") && test.mapper == "odd" && strings.Contains(page, "p.Hidden") {
			t.Errorf("%s: %d", test.mapper, code)
		}
	}
	if _, page := get(t, w.url+"start?mapper=delete", ""); !strings.Contains(page, `value="rehearsal" checked`) {
		t.Error("a mapper that destroys is not rehearsed at first")
	}
	_ = Odd{}.inner
}

// TestBodies posts bodies that no browser sends, such as too large or malformed ones.
func TestBodies(t *testing.T) {
	w := newEngine(t)
	h := dashboard.NewHandler(w.engine, everybody)
	for name, test := range map[string]struct {
		typ, body string
		code      int
	}{
		"nothing":     {"", "", 400},
		"half a part": {"multipart/form-data; boundary=x", "--x\r\nContent-", 400},
		"parts": {"multipart/form-data; boundary=x",
			"--x\r\nContent-Disposition: form-data; name=\"do\"\r\n\r\npause\r\n--x--\r\n", 400},
		"too much":        {"application/x-www-form-urlencoded", "do=pause&id=" + strings.Repeat("x", 2<<20), 400},
		"a wrong %":       {"application/x-www-form-urlencoded", "do=pause&id=%zz", 400},
		"JSON":            {"application/json", `{"do":"pause"}`, 400},
		"thousands of it": {"application/x-www-form-urlencoded", "do=pause" + strings.Repeat("&id=a", 5000), 404},
	} {
		r := httptest.NewRequest(http.MethodPost, "/act", strings.NewReader(test.body))
		r.Header.Set("Content-Type", test.typ)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != test.code {
			t.Errorf("%s: %d %.300s", name, rec.Code, rec.Body)
		}
	}
	for _, at := range []string{"/?a=%zz", "/job?id=%00", "/job?id=" + strings.Repeat("x", 5000),
		"/range?job=a/b&range=..", "/act?do=pause&id=" + url.QueryEscape("\xff")} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, at, nil))
		if rec.Code >= 500 {
			t.Errorf("%.50s: %d %.300s", at, rec.Code, rec.Body)
		}
	}
}
