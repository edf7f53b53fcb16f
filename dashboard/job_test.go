package dashboard_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// TestKindsOfJobs shows the pages of unusual jobs, such as a rehearsal, an undo, a job over several
// kinds and namespaces, and one whose records are deleted.
func TestKindsOfJobs(t *testing.T) {
	testflag.Sequential(t)
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
		job, err := w.engine.StartByName(t.Context(), name, q, []byte(`{}`), &o)
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
	if s, err := w.engine.Job("undo-done").Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
		t.Fatalf("%+v, %v", s, err)
	}
	w.run(t, "rehearsal", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20, DryRun: true})
	start("spaces", "look", mapper.Query{Kind: "Account", Namespaces: []string{"", "a", "b"}}, mapper.StartOptions{})
	start("sharded", "look", mapper.Query{Kind: "Account", ShardBy: "Balance"}, mapper.StartOptions{})
	start("empty", "look", mapper.Query{Kind: "Nothing"}, mapper.StartOptions{AllowEmpty: true})
	start("gone", "look", mapper.Query{Kind: "Account"}, mapper.StartOptions{})
	if code, text := post(t, w.url+"act", "do=clean-up&id=gone&confirmed=yes"); code != http.StatusSeeOther {
		t.Fatalf("%d %s", code, text)
	}
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if p, err := picture.Of(t.Context(), w.client, "gone"); err != nil || len(p.Ranges) == 0 {
			break // until the next sweep, the status says that the clean-up still runs
		}
		if time.Since(begun) > testflag.Patience {
			t.Fatal("it is not cleaned up")
		}
	}
	w.url = w.serve(t, nil) // a new dashboard, whose cache is empty
	const muted = `<span class="state past">succeeded</span> `
	for at, want := range map[string][]string{
		"job?id=undo-done": {"299 entities restored", "1 not restored. Example: /Account,7: it was changed",
			"partly restored", "left?id=undo-done", "the undo of <a",
			"stand-held"},
		"left?id=undo-done": {"/Account,7", "changed"},
		"": {muted + `<span class="state state-partly-restored">partly restored</span>`,
			"1 entity not restored", `>by undo-done<`,
			muted + `<span class="state state-partly-undone">partly undone</span>`},
		"job?id=done": {`Partly undone by the job </bdi><a href="job?id=undo-done"><bdi>undo-done</bdi></a>`,
			muted + `<span class="state state-partly-undone">partly undone</span>`},
		"job?id=rehearsal": {"rehearsal of <bdi>credit</bdi> over", "and wrote nothing", "would(change)",
			"Would write"},
		"examples?id=rehearsal": {"/Account,", "change", "Balance"},
		"examples?id=done":      {"There is nothing to show"},
		"job?id=spaces":         {"Kinds and namespaces", "Account in [b]", "the default one", "in the namespaces"},
		"job?id=sharded":        {"succeeded", "/Account,", "sharded by Balance"},
		"job?id=empty":          {"succeeded", "The key space"},
		"replay?id=empty":       {"<h1>Replay</h1>"},
		"replay.svg?id=empty":   {"<svg"},
		"job?id=gone":           {"were cleaned up"},
		"replay?id=gone":        {"There is no replay"},
		"replay.svg?id=gone":    {"<svg"},
	} {
		code, text := get(t, w.url+at, "text/html")
		for _, words := range want {
			if code != http.StatusOK || !strings.Contains(text, words) {
				t.Errorf("%s: %d, does not say %q:\n%.3000s", at, code, words,
					text[max(0, strings.Index(text, "<main")):])
			}
		}
	}
	checkWritten(t, w)
	if texts := everyPage(t, w); len(texts) < 50 {
		t.Errorf("%d pages", len(texts))
	}
}

// checkWritten checks which pages say how many entities were written: not the pages of a Visit,
// which can't write.
func checkWritten(t *testing.T, w *world) {
	t.Helper()
	for at, writes := range map[string]string{"done": "Written", "rehearsal": "Would write", "spaces": ""} {
		for _, page := range []string{"job?id=" + at, "range?job=" + at + "&range=" + w.rangeOf(t, at)} {
			_, text := get(t, w.url+page, "text/html")
			for _, fact := range []string{"Written", "Would write"} {
				if has := strings.Contains(text, "<dt>"+fact+"</dt>"); has != (fact == writes) {
					t.Errorf("%s has the fact %s: %v", page, fact, has)
				}
			}
		}
	}
}
