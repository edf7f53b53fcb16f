package tasks_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

const (
	account  = "tasks@p.iam.gserviceaccount.com"
	audience = "https://worker.example/"
)

// A forger makes tokens with a key of its own.
type forger struct{ key *rsa.PrivateKey }

func newForger(t *testing.T) forger {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return forger{key}
}

func (f forger) token(t *testing.T, change func(claims map[string]any)) string {
	t.Helper()
	claims := map[string]any{
		"iss": "https://accounts.google.com", "aud": audience, "sub": "1",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"email": account, "email_verified": true,
	}
	if change != nil {
		change(claims)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: f.key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (f forger) keys(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: f.key.Public(), KeyID: "k", Algorithm: "RS256", Use: "sig"}}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// newHandled returns a queue whose handler is all that a test uses of it.
func newHandled(t *testing.T, o *tasks.Options) *tasks.Queue {
	t.Helper()
	client, err := emulator.ForTest(t, nil).CloudTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := tasks.NewQueue(client, queueName, audience, o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func segment(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }

// TestHandlerAuthenticates sends requests with every kind of token. Only what
// the queue's service account signed, for this audience, now, is run.
func TestHandlerAuthenticates(t *testing.T) {
	google, stranger := newForger(t), newForger(t)
	q := newHandled(t, &tasks.Options{ServiceAccount: account, KeysURL: google.keys(t)})
	ran := 0
	handler := q.Handler(slog.New(slog.DiscardHandler), func(context.Context, tasks.Delivery) error { ran++; return nil })
	set := func(key string, value any) string {
		return google.token(t, func(claims map[string]any) { claims[key] = value })
	}
	good := google.token(t, nil)
	parts := strings.Split(good, ".")
	for name, c := range map[string]struct {
		authorization string
		want          int
	}{
		"good":                 {"Bearer " + good, 200},
		"scheme in lower case": {"bearer " + good, 200},
		"old form of issuer":   {"Bearer " + set("iss", "accounts.google.com"), 200},
		"none":                 {"", 401},
		"not a bearer":         {"Basic " + good, 401},
		"empty":                {"Bearer ", 401},
		"garbage":              {"Bearer a.b.c", 401},
		"another key":          {"Bearer " + stranger.token(t, nil), 401},
		"signature removed":    {"Bearer " + parts[0] + "." + parts[1] + ".", 401},
		"Cloud Run's removed":  {"Bearer " + parts[0] + "." + parts[1] + ".SIGNATURE_REMOVED_BY_GOOGLE", 401},
		"no algorithm":         {"Bearer " + segment(`{"alg":"none"}`) + "." + parts[1] + ".", 401},
		"short ES256":          {"Bearer " + segment(`{"alg":"ES256","kid":"k"}`) + "." + parts[1] + ".AA", 401},
		"claims changed":       {"Bearer " + parts[0] + "." + segment(`{"aud":"`+audience+`","exp":9999999999}`) + "." + parts[2], 401},
		"expired":              {"Bearer " + set("exp", time.Now().Add(-time.Hour).Unix()), 401},
		"no expiry":            {"Bearer " + set("exp", nil), 401},
		"issued in the future": {"Bearer " + set("iat", time.Now().Add(3*time.Minute).Unix()), 401},
		"a clock ahead":        {"Bearer " + set("iat", time.Now().Add(20*time.Second).Unix()), 200},
		"not valid yet":        {"Bearer " + set("nbf", time.Now().Add(3*time.Minute).Unix()), 401},
		"valid by a clock":     {"Bearer " + set("nbf", time.Now().Add(20*time.Second).Unix()), 200},
		"valid for long":       {"Bearer " + set("nbf", time.Now().Add(-time.Hour).Unix()), 200},
		"valid from a text":    {"Bearer " + set("nbf", "tomorrow"), 401},
		"another audience":     {"Bearer " + set("aud", "https://other.example/"), 401},
		"another issuer":       {"Bearer " + set("iss", "https://evil.example"), 401},
		"another account":      {"Bearer " + set("email", "evil@p.iam.gserviceaccount.com"), 403},
		"no account":           {"Bearer " + set("email", nil), 403},
		"account not verified": {"Bearer " + set("email_verified", false), 403},
		"verified as a string": {"Bearer " + set("email_verified", "true"), 403},
	} {
		before := ran
		r := httptest.NewRequest("POST", audience+"run", strings.NewReader("{}"))
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		r.Header.Set("X-CloudTasks-TaskName", "forged") // never authentication
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.want || (ran > before) != (c.want == 200) {
			t.Errorf("%s: answer %d, ran: %v; want %d", name, w.Code, ran > before, c.want)
		}
		if w.Body.Len() > 0 {
			t.Errorf("%s: the answer tells %q", name, w.Body)
		}
	}
}

// TestAttachedAndUnverified checks a service behind a check of its own: the
// deliveries carry a token, for that check, and the handler does not look at it.
func TestAttachedAndUnverified(t *testing.T) {
	authorization := make(chan string, 1)
	server := httptest.NewServer(nil)
	defer server.Close()
	q := newQueue(t, server.URL, nil, &tasks.Options{ServiceAccount: account, Unverified: true})
	handler := q.Handler(slog.Default(), func(context.Context, tasks.Delivery) error { return nil })
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization <- r.Header.Get("Authorization")
		r.Header.Set("Authorization", "Bearer a.b.SIGNATURE_REMOVED_BY_GOOGLE")
		handler.ServeHTTP(w, r)
	})
	if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc"}); err != nil {
		t.Fatal(err)
	}
	if got := <-authorization; !strings.HasPrefix(got, "Bearer ey") {
		t.Errorf("the delivery carries %q", got)
	}
}

// TestRequire checks the verifier as a handler of its own.
func TestRequire(t *testing.T) {
	google := newForger(t)
	v, err := tasks.NewVerifier(audience, []string{"x@y", account}, google.keys(t))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	handler := v.Require(slog.New(slog.NewTextHandler(&log, nil)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := tasks.Account(r.Context()); got != account {
			t.Errorf("the request is passed on with the account %q", got)
		}
		w.WriteHeader(204)
	}))
	for token, want := range map[string]int{
		google.token(t, nil): 204,
		"":                   401,
		google.token(t, func(claims map[string]any) { claims["aud"] = "other" }): 401,
		google.token(t, func(claims map[string]any) { claims["email"] = "z@y" }): 403,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		log.Reset()
		handler.ServeHTTP(w, r)
		if w.Code != want || (want != 204) != (log.Len() > 0 && w.Body.Len() > 0) || token != "" && strings.Contains(log.String(), token) {
			t.Errorf("answer %d %q, want %d; log %q", w.Code, w.Body, want, log.String())
		}
	}
	for _, bad := range []struct {
		audience string
		accounts []string
		keys     string
	}{{"", []string{"a"}, ""}, {"a", nil, ""}, {"a", []string{""}, ""}, {"a", []string{"a"}, "nowhere"}} {
		if _, err := tasks.NewVerifier(bad.audience, bad.accounts, bad.keys); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// TestTokensOfTheEmulator checks that both ends agree: what the queue asks for
// when it enqueues is what its handler wants.
func TestTokensOfTheEmulator(t *testing.T) {
	delivered := make(chan tasks.Delivery, 1)
	server := httptest.NewServer(nil)
	defer server.Close()
	q := newQueue(t, server.URL, &emulator.Options{KeysAddr: "127.0.0.1:0"}, &tasks.Options{ServiceAccount: account})
	server.Config.Handler = q.Handler(slog.Default(), func(_ context.Context, d tasks.Delivery) error { delivered <- d; return nil })
	if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if d := <-delivered; string(d.Body) != "x" {
		t.Errorf("delivery %+v", d)
	}
}

func TestHandlerAnswers(t *testing.T) {
	q := newHandled(t, &tasks.Options{Unverified: true})
	for name, c := range map[string]struct {
		method string
		body   io.Reader
		err    error
		want   int
	}{
		"done":      {"POST", strings.NewReader("{}"), nil, 200},
		"dropped":   {"POST", strings.NewReader("{}"), tasks.Drop(errors.New("no such job")), 200},
		"failed":    {"POST", strings.NewReader("{}"), errors.New("secret contents"), 500},
		"elsewhere": {"POST", strings.NewReader("{}"), tasks.Elsewhere(errors.New("this process ends")), 421},
		"GET":       {"GET", nil, nil, 405},
		"too large": {"POST", bytes.NewReader(make([]byte, 1<<20+1)), nil, 413},
		"largest":   {"POST", bytes.NewReader(make([]byte, 1<<20)), nil, 200},
	} {
		handler := q.Handler(slog.New(slog.DiscardHandler), func(context.Context, tasks.Delivery) error { return c.err })
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(c.method, audience, c.body))
		if w.Code != c.want || w.Body.Len() > 0 {
			t.Errorf("%s: answer %d %q, want %d and nothing", name, w.Code, w.Body, c.want)
		}
	}
}
