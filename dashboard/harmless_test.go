package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
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

// elements parses a page, and returns all its HTML elements.
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

// everyPage follows all links of the dashboard, and returns the texts of the pages by their
// addresses.
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
	for _, kind := range []string{"Account", "ScattermapJob", "ScattermapRange", "ScattermapSlot", "ScattermapDraft",
		"ScattermapSchedule"} {
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

// TestGetChangesNothing follows every link on the pages of a paused job, of a job with failures,
// and of a succeeded job. The database must stay unchanged.
func TestGetChangesNothing(t *testing.T) {
	testflag.Sequential(t)
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
	for begun := time.Now(); ; { // wait until the pages that still run have committed
		time.Sleep(500 * time.Millisecond)
		now := everything(t, w)
		if reflect.DeepEqual(now, settled) {
			break
		}
		if settled = now; time.Since(begun) > testflag.Patience {
			t.Fatal("the job does not come to rest")
		}
	}
	texts := everyPage(t, w)
	for _, name := range []string{"job?id=waits", "job?id=bad", "failures?id=bad", "range?job=good",
		"replay?frame=1&id=good", "replay.svg?id=good", "start?mapper=credit", "act?do=clean-up", "format=json",
		"colour=pace"} {
		if !slices.ContainsFunc(slices.Collect(keysOf(texts)), func(at string) bool {
			return strings.Contains(at, name)
		}) {
			t.Errorf("no link leads to %s", name)
		}
	}
	// Also get addresses to which no link leads.
	for _, verb := range []string{"pause", "resume", "abort", "retry", "undo", "clean-up", "move", "verify", "rate"} {
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

// hostile are texts that would execute a script or change the page if it contained them unescaped.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, "' onmouseover='alert(1)",
	"</style><style>*{display:none}</style>",
	"\u202egnp.exe", "{{.Secret}}", "a\x00b\x1b[2Jc\u2066d", strings.Repeat("W", 1500), "&lt;b&gt;",
	"]]><svg onload=alert(1)>",
}

// TestHostile uses hostile texts as names, keys, errors, parameters, reasons, callers and counters.
// No page may get an element, an attribute or an address from them. Characters that change the
// direction of text must be shown, and have no effect.
func TestHostile(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, &dashboard.Options{Allow: func(*http.Request) (string, error) {
		return hostile[0] + hostile[5], nil
	}})
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
		params, err := json.Marshal(TextParams{Amount: 1, Note: counterName(text), Extra: Extra{Tags: []string{text}}})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("job", i)
		w.run(t, id, string(params), mapper.StartOptions{PageSize: 5, AllowOverlap: true})
		for _, do := range []string{"retry", "rate"} {
			post(t, w.url+"act", url.Values{"do": {do}, "id": {id}, "reason": {text}, "cause": {text},
				"rate": {text}}.Encode())
		}
	}
	for _, id := range []string{"job0"} {
		if _, err := w.engine.Job(id).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	texts := everyPage(t, w)
	for _, text := range hostile { // pages also show parameters of requests
		for _, at := range []string{"?name=", "?state=", "?mapper=", "?cursor=", "job?id=", "job?id=job0&colour=",
			"range?job=job0&range=", "failures?id=job0&cursor=", "replay?id=job0&frame=", "start?mapper=",
			"act?id=job0&do=", "act?do=abort&id=", "x/", "?did="} {
			_, texts[w.url+at+url.QueryEscape(text)] = get(t, w.url+at+url.QueryEscape(text), "text/html")
		}
		form := make(url.Values)
		for _, name := range []string{"kind", "namespace", "filters", "share", "id", "p.Amount", "p.note",
			"p.extra.tags", "p.extra.wait", "rate", "budget", "queue", "reason", "how", "planned", "per_entity",
			"workers"} {
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

// counterName shortens a text to the maximum length of a counter's name.
func counterName(text string) string { return text[:min(len(text), 100)] }

// checkHarmless checks that the page at an address contains no element, attribute or address from a
// hostile text.
func checkHarmless(t *testing.T, at, text string) {
	t.Helper()
	for _, n := range elements(t, text) {
		said := attribute(n, "title") + attribute(n, "aria-label")
		// skip a textarea, which shows what the viewer has typed
		for c := n.FirstChild; c != nil && n.Data != "textarea"; c = c.NextSibling {
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
			if (a.Key == "href" || a.Key == "src" || a.Key == "action") &&
				(strings.Contains(strings.ToLower(a.Val), "javascript:") && !strings.Contains(a.Val, "=") ||
					strings.HasPrefix(a.Val, "//")) {
				t.Errorf("%q leads to %.60q", at, a.Val)
			}
		}
	}
}
