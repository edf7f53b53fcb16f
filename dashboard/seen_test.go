package dashboard_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestRedact uses a Redact function that hides keys, parameters and errors. No page may show any of
// them. It must still be possible to retry one cause of failures.
func TestRedact(t *testing.T) {
	testflag.Sequential(t)
	var mu sync.Mutex
	asked := make(map[dashboard.TextKind]int)
	w := newWorld(t, &dashboard.Options{Redact: func(what dashboard.TextKind, _ string) string {
		mu.Lock()
		defer mu.Unlock()
		asked[what]++
		return "hidden-" + string(what)
	}})
	const secret = "s3cret"
	if _, err := w.client.Put(t.Context(), datastore.IDKey("Account", 97, datastore.NameKey("Parent", secret, nil)),
		&account{}); err != nil {
		t.Fatal(err)
	}
	w.fails.Store(true)
	w.error.Store("the error of " + secret)
	if _, err := w.client.Put(t.Context(), datastore.IDKey("Account", 5, nil), &account{}); err != nil {
		t.Fatal(err)
	}
	inside := datastore.IDKey("Account", 97, nil)
	inside.Namespace = secret
	if _, err := w.client.Put(t.Context(), inside, &account{}); err != nil {
		t.Fatal(err)
	}
	params := []byte(`{"Amount": 1, "note": "` + secret + `", "extra": {"tags": ["` + secret + `"]}}`)
	w.run(t, "j", string(params), mapper.StartOptions{PageSize: 5})
	spaces := mapper.Query{Kind: "Account", Namespaces: []string{"", secret},
		Filters: []mapper.Filter{mapper.Where("Balance", "<", int64(1_000_000))}}
	for _, id := range []string{"spaces", "rehearsal"} {
		job, err := w.engine.StartByName(mapper.WithReason(t.Context(), secret), "credit", spaces, params,
			&mapper.StartOptions{ID: id, DryRun: id == "rehearsal"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.uploads.Store(60) // makes the next run of the mapper upload fail
	w.upload(t, "broken")
	_, failed := get(t, w.url+"job?id=broken&format=json", "")
	if !strings.Contains(failed, `"action":"failed","reason":"hidden-error"`) {
		t.Errorf("the history of a failed job does not have its error redacted as an error: %s", failed)
	}
	texts := everyPage(t, w)
	for at, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("%s says it", at)
		}
	}
	for _, what := range []dashboard.TextKind{dashboard.TextKey, dashboard.TextParams, dashboard.TextError,
		dashboard.TextValue,
		dashboard.TextCounter, dashboard.TextReason} {
		if asked[what] == 0 {
			t.Errorf("asked about %v, and not about a %s", asked, what)
		}
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
	if s, err := w.engine.Job("j").Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
		t.Errorf("%+v, %v", s, err)
	}
}
