package dashboard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
	"github.com/scattermap/scattermap/tasks"
)

// elements returns the elements of a page.
func elements(t *testing.T, page string) (all []*html.Node) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.ElementNode {
			all = append(all, n)
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(root)
	return all
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// everyPage returns the addresses of all pages that links lead to, each with its text, as somebody finds them who follows every link.
func everyPage(t *testing.T, w *world) map[string]string {
	t.Helper()
	texts, queue := make(map[string]string), []string{w.url}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if _, seen := texts[at]; seen {
			continue
		}
		code, text := get(t, at, "text/html")
		texts[at] = text
		if code != http.StatusOK {
			t.Errorf("%s is linked to, and answers %d", at, code)
		}
		base, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "<html") {
			continue
		}
		for _, n := range elements(t, text) {
			for _, name := range []string{"href", "src"} {
				link := attribute(n, name)
				if link == "" || strings.HasPrefix(link, "#") {
					continue
				}
				to, err := base.Parse(link)
				if err != nil {
					t.Fatalf("%s: %q: %v", at, link, err)
				}
				if strings.HasPrefix(link, "/") || !strings.HasPrefix(to.String(), w.url) {
					t.Errorf("%s links to %q, which is not relative", at, link)
				}
				to.Fragment = ""
				queue = append(queue, to.String())
			}
		}
	}
	return texts
}

// everything returns all entities of the database.
func everything(t *testing.T, w *world) map[string]datastore.PropertyList {
	t.Helper()
	all := make(map[string]datastore.PropertyList)
	for _, kind := range []string{"Account", "ScattermapJob", "ScattermapRange", "ScattermapSlot", "ScattermapDraft", "ScattermapSchedule"} {
		var found []datastore.PropertyList
		keys, err := w.client.GetAll(t.Context(), datastore.NewQuery(kind), &found)
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			slices.SortFunc(found[i], func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
			all[k.String()] = found[i]
		}
	}
	return all
}

// TestGetChangesNothing follows every link of the pages of a job that is paused, of one that has failures, and of one that succeeded: the
// database is as it was.
func TestGetChangesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 300)
	w.run(t, "good", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.fails.Store(true)
	w.run(t, "bad", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.slow.Store(int64(20 * time.Millisecond))
	job := w.start(t, "waits", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
	if err := job.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled := everything(t, w)
	for begun := time.Now(); ; { // what was under way comes to the end of its page
		time.Sleep(500 * time.Millisecond)
		now := everything(t, w)
		if reflect.DeepEqual(now, settled) {
			break
		}
		if settled = now; time.Since(begun) > time.Minute {
			t.Fatal("the job does not come to rest")
		}
	}
	texts := everyPage(t, w)
	for _, name := range []string{"job?id=waits", "job?id=bad", "failures?id=bad", "range?job=good", "replay?frame=1&id=good", "replay.svg?id=good", "start?mapper=credit", "act?do=clean-up", "format=json", "colour=pace"} {
		if !slices.ContainsFunc(slices.Collect(keysOf(texts)), func(at string) bool { return strings.Contains(at, name) }) {
			t.Errorf("no link leads to %s", name)
		}
	}
	for _, verb := range []string{"pause", "resume", "abort", "retry", "undo", "clean-up", "move", "verify", "rate"} { // as somebody may type it
		for _, id := range []string{"good", "bad", "waits"} {
			get(t, w.url+"act?do="+verb+"&confirmed=yes&rate=1&id="+id, "")
		}
	}
	get(t, w.url+"start?mapper=credit&kind=Account&p.Amount=1&id=new&do=start&how=all&share=1%25&planned=x", "")
	if now := everything(t, w); !reflect.DeepEqual(now, settled) {
		t.Error("something is changed:", cmp.Diff(settled, now))
	}
	t.Logf("%d pages", len(texts))
}

func keysOf(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// hostile are texts that would do harm if a page took them for its own.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, "' onmouseover='alert(1)", "</style><style>*{display:none}</style>",
	"\u202egnp.exe", "{{.Secret}}", "a\x00b\x1b[2Jc\u2066d", strings.Repeat("W", 1400), "&lt;b&gt;", "]]><svg onload=alert(1)>",
}

// TestHostile has names, keys, errors, parameters, reasons, callers and counters be hostile: no page has an element, an attribute or an address
// that comes from them, and characters that turn the direction of texts are shown, and not obeyed.
func TestHostile(t *testing.T) {
	w := newWorld(t, &dashboard.Options{Allow: func(*http.Request) (string, error) { return hostile[0] + hostile[5], nil }})
	var keys []*datastore.Key
	for i, name := range hostile {
		k := datastore.NameKey("Account", name, datastore.NameKey(`<b>"Parent`, name, nil))
		keys = append(keys, k, datastore.IDKey("Account", int64(97*(i+1)), nil))
	}
	if _, err := w.client.PutMulti(t.Context(), keys, make([]account, len(keys))); err != nil {
		t.Fatal(err)
	}
	w.fails.Store(true)
	for i, text := range hostile {
		w.error.Store(text)
		params, err := json.Marshal(Params{Amount: 1, Note: mapperName(text), Extra: Extra{Tags: []string{text}}})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("job", i)
		w.run(t, id, string(params), mapper.StartOptions{PageSize: 5, Beside: true})
		for _, do := range []string{"retry", "rate"} {
			post(t, w.url+"act", url.Values{"do": {do}, "id": {id}, "reason": {text}, "cause": {text}, "rate": {text}}.Encode())
		}
	}
	for _, id := range []string{"job0"} {
		if _, err := w.engine.Job(id).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	texts := everyPage(t, w)
	for _, text := range hostile { // what is asked for is shown, too
		for _, at := range []string{"?name=", "?state=", "?mapper=", "?cursor=", "job?id=", "job?id=job0&colour=", "range?job=job0&range=", "failures?id=job0&cursor=", "replay?id=job0&frame=", "start?mapper=", "act?id=job0&do=", "act?do=abort&id=", "x/", "?did="} {
			_, texts[w.url+at+url.QueryEscape(text)] = get(t, w.url+at+url.QueryEscape(text), "text/html")
		}
		form := make(url.Values)
		for _, name := range []string{"kind", "namespace", "filters", "share", "id", "p.Amount", "p.note", "p.extra.tags", "p.extra.wait", "rate", "budget", "queue", "reason", "how", "planned", "per_entity", "workers"} {
			form.Set(name, text)
		}
		form.Set("mapper", "credit")
		_, texts["start "+text] = post(t, w.url+"start", form.Encode())
	}
	shown := 0
	for at, text := range texts {
		if strings.Contains(text, "<html") {
			checkHarmless(t, at, text)
		}
		if strings.Contains(text, "&lt;script&gt;alert(1)") {
			shown++
		}
	}
	if shown < 5 {
		t.Errorf("%d pages show the text of a script", shown)
	}
	t.Logf("%d pages", len(texts))
}

// mapperName returns what a counter can be called.
func mapperName(text string) string { return text[:min(len(text), 100)] }

// checkHarmless checks that a page has nothing that comes from somebody else.
func checkHarmless(t *testing.T, at, text string) {
	t.Helper()
	for _, n := range elements(t, text) {
		said := attribute(n, "title") + attribute(n, "aria-label")
		for c := n.FirstChild; c != nil && n.Data != "textarea"; c = c.NextSibling { // which has what was entered
			if c.Type == html.TextNode {
				said += c.Data
			}
		}
		if strings.ContainsAny(said, "\u202e\u2066\x1b\x00") {
			t.Errorf("%q says something that a browser obeys: %q", at, said)
		}
		switch n.Data {
		case "script":
			if attribute(n, "src") != "script.js" || n.FirstChild != nil {
				t.Errorf("%q has a script", at)
			}
		case "img", "style", "iframe", "object", "embed", "b":
			t.Errorf("%q has a %s", at, n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
				t.Errorf("%q has the attribute %s=%.60q", at, a.Key, a.Val)
			}
			if (a.Key == "href" || a.Key == "src" || a.Key == "action") && (strings.Contains(strings.ToLower(a.Val), "javascript:") && !strings.Contains(a.Val, "=") || strings.HasPrefix(a.Val, "//")) {
				t.Errorf("%q leads to %.60q", at, a.Val)
			}
		}
	}
}

// orders are all that can be posted.
var orders = []string{
	"act do=pause&id=j", "act do=resume&id=j", "act do=abort&id=j&confirmed=yes", "act do=retry&id=j", "act do=undo&id=j&confirmed=yes", "act do=clean-up&id=j&confirmed=yes",
	"act do=rate&rate=5&id=j", "act do=move&id=j&confirmed=yes", "act do=verify&id=j&confirmed=yes", "start do=plan&mapper=credit&kind=Account&id=k", "start do=start&mapper=credit&kind=Account&id=k",
}

// TestForged posts each order as a browser does for a page of another site: it is refused, and so is a read-only dashboard's, and nothing is changed.
func TestForged(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	readOnly := w.serve(t, &dashboard.Options{ReadOnly: true})
	before := everything(t, w)
	for _, o := range orders {
		at, form, _ := strings.Cut(o, " ")
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
			if code, text := post(t, w.url+at, form, headers...); code != http.StatusForbidden || !strings.Contains(text, "another site") {
				t.Errorf("%s with %q: %d %.200s", o, headers, code, text)
			}
		}
		for _, accept := range []string{"text/html", "application/json"} {
			if code, text := post(t, readOnly+at, form, "Sec-Fetch-Site", "same-origin", "Accept", accept); code != http.StatusForbidden || !strings.Contains(text, "read-only") {
				t.Errorf("%s, read-only: %d %.200s", o, code, text)
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "POST", "OPTIONS"} {
		for _, at := range []string{"", "job?id=j", "range?job=j", "failures?id=j", "replay?id=j", "act?do=abort&confirmed=yes&id=j", "start?mapper=credit"} {
			r, err := http.NewRequestWithContext(t.Context(), method, w.url+at, nil)
			if err != nil {
				t.Fatal(err)
			}
			if code, text := send(t, r); code < 400 && !strings.Contains(text, "can't be resumed") {
				t.Errorf("%s %s: %d", method, at, code)
			}
		}
	}
	if now := everything(t, w); !reflect.DeepEqual(now, before) {
		t.Error("something is changed:", cmp.Diff(before, now))
	}
	w.url = readOnly
	for at, text := range everyPage(t, w) {
		if strings.Contains(text, `method="post"`) || strings.Contains(text, "<button name=") {
			t.Errorf("%s offers what can't be done", at)
		}
	}
}

// TestAllowed checks who may see the pages, and who is said to have done what.
func TestAllowed(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 10)
	for name, test := range map[string]struct {
		allow func(*http.Request) (string, error)
		code  int
	}{
		"nobody":    {nil, http.StatusForbidden},
		"a token":   {func(*http.Request) (string, error) { return "", fmt.Errorf("no: %w", tasks.ErrToken) }, http.StatusUnauthorized},
		"forbidden": {func(*http.Request) (string, error) { return "", errors.New("the secret reason") }, http.StatusForbidden},
		"ann":       {func(*http.Request) (string, error) { return "ann@example.com", nil }, http.StatusOK},
	} {
		h := dashboard.New(w.engine, &dashboard.Options{Allow: test.allow})
		for _, at := range []string{"/", "/job?id=x", "/style.css", "/start"} {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, at, nil))
			want := test.code
			if want == http.StatusOK && strings.Contains(at, "id=x") {
				want = http.StatusNotFound
			}
			if rec.Code != want || strings.Contains(rec.Body.String(), "secret reason") {
				t.Errorf("%s, %s: %d %.200s", name, at, rec.Code, rec.Body)
			}
			if csp := rec.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
				t.Errorf("%s, %s: policy %q", name, at, csp)
			}
		}
	}
	w.url = w.serve(t, &dashboard.Options{Allow: func(*http.Request) (string, error) { return "ann@example.com", nil }})
	plan := "mapper=credit&kind=Account&p.Amount=5&id=hers&how=all&reason=because"
	if code, text := post(t, w.url+"start", plan+"&do=start", "Accept", "application/json"); code != http.StatusOK || !strings.Contains(text, `"id":"hers"`) {
		t.Fatalf("%d %s", code, text)
	}
	acts, err := w.engine.Job("hers").History(t.Context())
	if err != nil || len(acts) == 0 || acts[0].By != "ann@example.com" || acts[0].Why != "because" {
		t.Errorf("%+v, %v", acts, err)
	}
}

// TestLoopback checks who is this machine.
func TestLoopback(t *testing.T) {
	for _, test := range []struct {
		remote, host string
		ok           bool
	}{
		{"127.0.0.1:5", "127.0.0.1:80", true}, {"[::1]:5", "[::1]:80", true}, {"127.0.0.1:5", "localhost:80", true}, {"127.0.0.1:5", "localhost", true},
		{"127.0.0.1:5", "evil.example:80", false}, {"10.0.0.1:5", "127.0.0.1:80", false}, {"localhost:5", "127.0.0.1:80", false}, {"127.0.0.1:5", "", false}, {"", "localhost", false},
		{"127.0.0.1:5", "127.0.0.1.evil.example", false}, {"127.0.0.1:5", "localhost.evil.example:80", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = test.remote, test.host
		if _, err := dashboard.Loopback(r); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestMounted mounts the pages in all the ways that are there: each link leads to a page.
func TestMounted(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 20)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	h := dashboard.New(w.engine, &dashboard.Options{Allow: dashboard.Loopback})
	for name, mount := range map[string]func(*http.ServeMux) (path string){
		"at the root":          func(m *http.ServeMux) string { m.Handle("/", h); return "/" },
		"without StripPrefix":  func(m *http.ServeMux) string { m.Handle("/admin/jobs/", h); return "/admin/jobs/" },
		"with StripPrefix":     func(m *http.ServeMux) string { m.Handle("/d/job/", http.StripPrefix("/d/job", h)); return "/d/job/" },
		"with StripPrefix's /": func(m *http.ServeMux) string { m.Handle("/d/", http.StripPrefix("/d/", h)); return "/d/" },
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			path := mount(mux)
			server := httptest.NewServer(mux)
			defer server.Close()
			w.url = server.URL + path
			if texts := everyPage(t, w); len(texts) < 10 {
				t.Errorf("%d pages", len(texts))
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/a/b", http.StripPrefix("/a/b", h))
	server := httptest.NewServer(mux)
	defer server.Close()
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Get(server.URL + "/a/b?state=running")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if to, err := resp.Location(); err != nil || to.Path != "/a/b/" {
		t.Errorf("%v, %v", to, err)
	}
	rec := httptest.NewRecorder()
	dashboard.New(nil, &dashboard.Options{Allow: func(*http.Request) (string, error) { return "", nil }}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusInternalServerError || !strings.Contains(rec.Body.String(), "no engine") {
		t.Errorf("without an engine: %d %s", rec.Code, rec.Body)
	}
}

// names returns the names of the members of JSON, those inside with a dot; of an array those of its first element.
func names(v any, prefix string) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, inside := range v {
			all = append(all, prefix+name)
			all = append(all, names(inside, prefix+name+".")...)
		}
	case []any:
		if len(v) > 0 {
			all = names(v[0], prefix)
		}
	}
	slices.Sort(all)
	return all
}

// TestJSON checks the names that programs rely on, by both ways of asking for them.
func TestJSON(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 300)
	w.fails.Store(true)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.slow.Store(int64(time.Second))
	w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	id := w.rangeOf(t, "j")
	for at, want := range map[string]string{
		"?name=runs":              "jobs jobs.counted jobs.created jobs.dollars jobs.failures jobs.id jobs.mapper jobs.processed jobs.progress jobs.progress.about jobs.progress.at_least jobs.progress.at_most jobs.progress.overall jobs.progress.rate jobs.queue jobs.state",
		"job?id=j":                "causes causes.cause causes.count causes.estimated causes.example causes.example.attempts causes.example.error causes.example.key causes.example.time estimated history history.state history.time history.what kept levels levels.depth levels.entities levels.open levels.ranges pages pages.entities pages.per_entity pages.seconds ranges ranges.attempts ranges.continues ranges.created ranges.depth ranges.done ranges.end ranges.entities ranges.id ranges.ran ranges.refusals ranges.stands ranges.state ranges.written series series.busy series.from series.rate status status.params status.query status.settings",
		"range?job=j&range=" + id: "job range range.alone range.attempts range.continues range.created range.deaths range.depth range.done range.entities range.error range.full range.id range.page_size range.ran range.refusals range.stands range.start range.state range.written",
		"failures?id=j":           "causes causes.cause causes.count causes.estimated causes.example causes.example.attempts causes.example.error causes.example.key causes.example.time failures failures.attempts failures.error failures.key failures.time",
		"replay?id=j":             "frames ranges ranges.id ranges.state times",
		"start?mapper=credit":     "mappers mappers.fields mappers.fields.kind mappers.fields.name mappers.fields.optional mappers.name mappers.visit",
	} {
		for _, way := range []string{"accept", "format"} {
			var text string
			var code int
			if way == "accept" {
				code, text = get(t, w.url+at, "text/html;q=0.8, application/json")
			} else {
				code, text = get(t, w.url+at+"&format=json", "text/html")
			}
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil || code != http.StatusOK {
				t.Errorf("%s by %s: %d %v %.100s", at, way, code, err, text)
				continue
			}
			have := names(v, "")
			for name := range strings.FieldsSeq(want) {
				if !slices.Contains(have, name) {
					t.Errorf("%s by %s has no %s: %q", at, way, name, have)
				}
			}
		}
	}
	for at, want := range map[string]int{"job?id=nobody": 404, "nowhere": 404, "job": 400, "?state=x": 400, "?cursor=x": 400, "range?job=j&range=x": 404, "replay?id=j&frame=31": 400, "job?id=j&colour=red": 400, "start?mapper=x": 400, "act?do=x&id=j": 400} {
		code, text := get(t, w.url+at, "application/json")
		var failed struct{ Error string }
		if err := json.Unmarshal([]byte(text), &failed); err != nil || code != want || failed.Error == "" {
			t.Errorf("%s: %d %s, want %d", at, code, text, want)
		}
		if code, text = get(t, w.url+at, ""); code != want || !strings.Contains(text, "<h1>"+fmt.Sprint(want)) {
			t.Errorf("%s: %d %.300s, want %d", at, code, text, want)
		}
	}
}

// TestRedact has keys, parameters and errors be hidden: no page says any of it, and a cause can still be retried.
func TestRedact(t *testing.T) {
	var mu sync.Mutex
	asked := make(map[dashboard.What]int)
	w := newWorld(t, &dashboard.Options{Redact: func(what dashboard.What, _ string) string {
		mu.Lock()
		defer mu.Unlock()
		asked[what]++
		return "hidden-" + string(what)
	}})
	const secret = "s3cret"
	if _, err := w.client.Put(t.Context(), datastore.IDKey("Account", 97, datastore.NameKey("Parent", secret, nil)), &account{}); err != nil {
		t.Fatal(err)
	}
	w.fails.Store(true)
	w.error.Store("the error of " + secret)
	w.run(t, "j", `{"Amount": 1, "extra": {"tags": ["`+secret+`"]}}`, mapper.StartOptions{PageSize: 5})
	texts := everyPage(t, w)
	for at, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("%s says it", at)
		}
	}
	if asked[dashboard.Key] == 0 || asked[dashboard.Params] == 0 || asked[dashboard.Error] == 0 {
		t.Errorf("asked about %v", asked)
	}
	hash := ""
	for _, n := range elements(t, texts[w.url+"job?id=j"]) {
		if attribute(n, "name") == "of" {
			hash = attribute(n, "value")
		}
	}
	w.fails.Store(false)
	if code, text := post(t, w.url+"act", "do=retry&id=j&of="+hash); code != http.StatusSeeOther {
		t.Fatalf("%d %.200s", code, text)
	}
	if s, err := w.engine.Job("j").Wait(t.Context()); err != nil || s.State != mapper.Succeeded {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestLegal checks that what a job's page offers is what the job can do, in each state: nothing that is offered is refused, and what is not is.
func TestLegal(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 200)
	prepare := map[mapper.State]func(id string){
		mapper.Succeeded: func(id string) { w.fails.Store(false); w.run(t, id, `{"Amount": 1}`, mapper.StartOptions{}) },
		mapper.SucceededWithFailures: func(id string) {
			w.fails.Store(true)
			w.run(t, id, `{"Amount": 1}`, mapper.StartOptions{})
		},
		mapper.Running: func(id string) {
			w.slow.Store(int64(50 * time.Millisecond))
			w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, Beside: true})
		},
		mapper.Paused: func(id string) {
			w.slow.Store(int64(50 * time.Millisecond))
			if err := w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, Beside: true}).Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		mapper.Aborted: func(id string) {
			w.slow.Store(int64(50 * time.Millisecond))
			if err := w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, Beside: true}).Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	}
	n := 0
	for state, start := range prepare {
		for _, verb := range []string{"pause", "resume", "retry", "abort", "rate", "undo", "clean-up", "verify"} {
			n++
			id := fmt.Sprint("j", n)
			w.slow.Store(0)
			start(id)
			_, page := get(t, w.url+"job?id="+id, "")
			offered := strings.Contains(page, `value="`+verb+`"`) || strings.Contains(page, "do="+verb)
			code, text := post(t, w.url+"act", "do="+verb+"&confirmed=yes&id="+id)
			switch {
			case offered && code >= 400:
				t.Errorf("%s is offered for a job that is %s, and refused: %d %.400s", verb, state, code, text[strings.Index(text, "<main"):])
			case !offered && code < 400 && !harmless[fmt.Sprint(state, " ", verb)]:
				t.Errorf("%s is not offered for a job that is %s, and done: %d", verb, state, code)
			}
			_ = w.engine.Job(id).Abort(t.Context())
		}
	}
}

// harmless is what a job can do that is not worth a button: it has nothing to undo or to retry, is so already, or revives only.
var harmless = map[string]bool{
	"running resume": true, "running retry": true, "paused retry": true, "paused pause": true, "succeeded retry": true, "aborted abort": true, "aborted undo": true,
	"running verify": true, "paused verify": true,
}

// TestMany does something to several jobs at once: to those that can do it, and says of the others why not.
func TestMany(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.slow.Store(int64(100 * time.Millisecond))
	for _, id := range []string{"a", "b"} {
		w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, Beside: true})
	}
	if code, text := post(t, w.url+"act", "do=pause&id=a&id=b&reason=lunch"); code != http.StatusSeeOther {
		t.Fatalf("%d %.300s", code, text)
	}
	for _, id := range []string{"a", "b"} {
		if s, err := w.engine.Job(id).Status(t.Context()); err != nil || s.State != mapper.Paused {
			t.Errorf("%s: %+v, %v", id, s, err)
		}
	}
	code, text := post(t, w.url+"act", "do=resume&id=a&id=nobody&id=b", "Accept", "application/json")
	var done struct {
		Done   []string
		Failed []struct{ ID, Error string }
	}
	if err := json.Unmarshal([]byte(text), &done); err != nil || code != http.StatusOK || !slices.Equal(done.Done, []string{"a", "b"}) || len(done.Failed) != 1 || done.Failed[0].ID != "nobody" {
		t.Errorf("%d %s", code, text)
	}
	if code, text := post(t, w.url+"act", "do=abort&id=a&id=b"); code != http.StatusOK || !strings.Contains(text, "can&#39;t be resumed") || strings.Count(text, `name="id"`) != 2 {
		t.Errorf("%d %.2000s", code, text)
	}
	for form, want := range map[string]int{"do=abort": 400, "do=undo&id=a&id=b": 400, "do=x&id=a": 400, "do=rate&id=a&rate=x": 400, "do=rate&id=a&rate=-1": 400, "do=rate&id=a&rate=NaN": 400, "do=rate&id=a&for=x": 400,
		"do=pause&id=nobody": 404, "do=abort&id=a&confirmed=yes": 303, "do=resume&id=a": 409, "do=retry&id=b&cause=x": 400, "do=retry&id=b&of=x": 400} {
		if code, text := post(t, w.url+"act", form); code != want {
			t.Errorf("%s: %d %.300s, want %d", form, code, text, want)
		}
	}
}

// TestWatchersCostOne has fifty people watch a job for a minute, each by a page that renews itself every two seconds: together they cost about as
// much as one.
func TestWatchersCostOne(t *testing.T) {
	one, fifty := watched(t, 1), watched(t, 50)
	t.Logf("one costs %d calls, fifty %d", one, fifty)
	if one == 0 || float64(fifty) > 1.1*float64(one) {
		t.Errorf("one who watches costs %d calls, and fifty cost %d", one, fifty)
	}
}

// watched returns how many calls are made while so many watch a job for a minute.
func watched(t *testing.T, n int) (calls int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newEngine(t)
		w.putAccounts(t, 3000)
		w.slow.Store(int64(time.Second))
		job := w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
		time.Sleep(3 * time.Second)
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		h := dashboard.New(w.engine, &dashboard.Options{Allow: func(*http.Request) (string, error) { return "", nil }})
		before := w.calls()
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 37 * time.Millisecond)
				for range 30 {
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/job?id=j", nil))
					if rec.Code != http.StatusOK {
						t.Errorf("%d %s", rec.Code, rec.Body)
					}
					time.Sleep(2 * time.Second)
				}
			})
		}
		group.Wait()
		calls = w.calls() - before
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return calls
}

// TestKindsOfJobs shows jobs of all kinds: a rehearsal with what it would do, an undo with what it has left, one over several kinds and namespaces,
// one that is sharded by a property, one without entities, and one whose records are gone.
func TestKindsOfJobs(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 300)
	for _, namespace := range []string{"a", "b"} {
		key := datastore.IDKey("Account", 5, nil)
		key.Namespace = namespace
		if _, err := w.client.Put(t.Context(), key, &account{}); err != nil {
			t.Fatal(err)
		}
	}
	start := func(id string, name string, q mapper.Query, o mapper.StartOptions) {
		t.Helper()
		o.ID, o.PageSize = id, 20
		job, err := w.engine.StartNamed(t.Context(), name, q, []byte(`{}`), &o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.run(t, "done", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20})
	if _, err := w.client.Put(t.Context(), datastore.IDKey("Account", 7, nil), &account{1000}); err != nil {
		t.Fatal(err)
	}
	if code, text := post(t, w.url+"act", "do=undo&id=done&confirmed=yes"); code != http.StatusSeeOther {
		t.Fatalf("%d %s", code, text)
	}
	if s, err := w.engine.Job("undo-done").Wait(t.Context()); err != nil || s.State != mapper.Succeeded {
		t.Fatalf("%+v, %v", s, err)
	}
	w.run(t, "rehearsal", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20, Rehearse: true})
	start("spaces", "look", mapper.Query{Kind: "Account", Namespaces: []string{"", "a", "b"}}, mapper.StartOptions{})
	start("sharded", "look", mapper.Query{Kind: "Account", ShardBy: "Balance"}, mapper.StartOptions{})
	start("empty", "look", mapper.Query{Kind: "Nothing"}, mapper.StartOptions{AllowEmpty: true})
	start("gone", "look", mapper.Query{Kind: "Account"}, mapper.StartOptions{})
	if code, text := post(t, w.url+"act", "do=clean-up&id=gone&confirmed=yes"); code != http.StatusSeeOther {
		t.Fatalf("%d %s", code, text)
	}
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if p, err := picture.Of(t.Context(), w.client, "gone"); err != nil || len(p.Ranges) == 0 {
			break // its status says that it is being cleaned up until the next sweep
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("it is not cleaned up")
		}
	}
	time.Sleep(2100 * time.Millisecond) // what was read is forgotten
	for at, want := range map[string][]string{
		"job?id=undo-done":      {"299 entities restored", "1 left as they are", "left?id=undo-done"},
		"left?id=undo-done":     {"/Account,7", "changed"},
		"job?id=done":           {"The job that undoes it", "undo-done"},
		"job?id=rehearsal":      {"A rehearsal: nothing is written", "would(change)"},
		"examples?id=rehearsal": {"/Account,", "change", "Balance"},
		"examples?id=done":      {"There is nothing to show"},
		"job?id=spaces":         {"Kinds and namespaces", "Account [b]", "the default one"},
		"job?id=sharded":        {"succeeded", "/Account,"},
		"job?id=empty":          {"succeeded", "The key space"},
		"replay?id=empty":       {"How it unfolded"},
		"replay.svg?id=empty":   {"<svg"},
		"job?id=gone":           {"were cleaned up"},
		"replay?id=gone":        {"nothing to play back"},
		"replay.svg?id=gone":    {"<svg"},
	} {
		code, text := get(t, w.url+at, "text/html")
		for _, words := range want {
			if code != http.StatusOK || !strings.Contains(text, words) {
				t.Errorf("%s: %d, does not say %q:\n%.3000s", at, code, words, text[max(0, strings.Index(text, "<main")):])
			}
		}
	}
	if texts := everyPage(t, w); len(texts) < 50 {
		t.Errorf("%d pages", len(texts))
	}
}
