package dashboard_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/mapper"
)

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
