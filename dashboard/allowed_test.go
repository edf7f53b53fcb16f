package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/mapper"
)

// orders are all requests that can be posted, as the last part of the path and the form's fields.
var orders = []string{
	"act do=pause&id=j", "act do=resume&id=j", "act do=abort&id=j&confirmed=yes", "act do=retry&id=j",
	"act do=undo&id=j&confirmed=yes", "act do=clean-up&id=j&confirmed=yes",
	"act do=rate&rate=5&id=j", "act do=move&id=j&confirmed=yes", "act do=verify&id=j&confirmed=yes",
	"start do=plan&mapper=credit&kind=Account&id=k", "start do=start&mapper=credit&kind=Account&id=k",
}

// TestForged posts each action with the headers that a browser sends if a page of another site
// makes the request. Each request must be refused and change nothing. A read-only dashboard must
// refuse all actions, too.
func TestForged(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	readOnly := w.serve(t, &dashboard.Options{ReadOnly: true})
	before := everything(t, w)
	for _, o := range orders {
		at, form, _ := strings.Cut(o, " ")
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Origin", "https://evil.example"}, {"Origin", "null"}} {
			if code, text := post(t, w.url+at, form, headers...); code != http.StatusForbidden ||
				!strings.Contains(text, "another site") {
				t.Errorf("%s with %q: %d %.200s", o, headers, code, text)
			}
		}
		for _, accept := range []string{"text/html", "application/json"} {
			if code, text := post(t, readOnly+at, form, "Sec-Fetch-Site", "same-origin", "Accept",
				accept); code != http.StatusForbidden || !strings.Contains(text, "read-only") {
				t.Errorf("%s, read-only: %d %.200s", o, code, text)
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "POST", "OPTIONS"} {
		for _, at := range []string{"", "job?id=j", "range?job=j", "failures?id=j", "replay?id=j",
			"act?do=abort&confirmed=yes&id=j", "start?mapper=credit"} {
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

// TestAllowed checks who may see the pages, and whose name the history has after an action.
func TestAllowed(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 10)
	for name, test := range map[string]struct {
		allow func(*http.Request) (string, error)
		code  int
	}{
		"nobody": {nil, http.StatusForbidden},
		"a token": {func(*http.Request) (string, error) { return "", fmt.Errorf("no: %w", auth.ErrUnauthenticated) },
			http.StatusUnauthorized},
		"forbidden": {func(*http.Request) (string, error) { return "", errors.New("the secret reason") },
			http.StatusForbidden},
		"ann": {func(*http.Request) (string, error) { return "ann@example.com", nil }, http.StatusOK},
	} {
		h := dashboard.NewHandler(w.engine, &dashboard.Options{Allow: test.allow})
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
			if csp := rec.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") ||
				strings.Contains(csp, "unsafe") {
				t.Errorf("%s, %s: policy %q", name, at, csp)
			}
		}
	}
	w.url = w.serve(t, &dashboard.Options{Allow: func(*http.Request) (string, error) { return "ann@example.com", nil }})
	plan := "mapper=credit&kind=Account&p.Amount=5&id=hers&how=all&reason=because"
	if code, text := post(t, w.url+"start", plan+"&do=start", "Accept", "application/json"); code != http.StatusOK ||
		!strings.Contains(text, `"id":"hers"`) {
		t.Fatalf("%d %s", code, text)
	}
	acts, err := w.engine.Job("hers").History(t.Context())
	if err != nil || len(acts) == 0 || acts[0].By != "ann@example.com" || acts[0].Reason != "because" {
		t.Errorf("%+v, %v", acts, err)
	}
}

// TestLoopback checks which addresses auth.Loopback accepts as this machine.
func TestLoopback(t *testing.T) {
	for _, test := range []struct {
		remote, host string
		ok           bool
	}{
		{"127.0.0.1:5", "127.0.0.1:80", true}, {"[::1]:5", "[::1]:80", true}, {"127.0.0.1:5", "localhost:80", true},
		{"127.0.0.1:5", "localhost", true},
		{"127.0.0.1:5", "evil.example:80", false}, {"10.0.0.1:5", "127.0.0.1:80", false},
		{"localhost:5", "127.0.0.1:80", false}, {"127.0.0.1:5", "", false}, {"", "localhost", false},
		{"127.0.0.1:5", "127.0.0.1.evil.example", false}, {"127.0.0.1:5", "localhost.evil.example:80", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = test.remote, test.host
		if _, err := auth.Loopback(r); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
			passed := r.Clone(t.Context())
			passed.Header.Set(name, "203.0.113.5")
			if _, err := auth.Loopback(passed); err == nil {
				t.Errorf("%+v is allowed when a proxy has passed it on, and says so by %s", test, name)
			}
		}
	}
}
