package tasks_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/scattermap/scattermap/tasks"
)

// A forger makes tokens of one kind with a key of its own.
type forger struct {
	key       crypto.Signer
	algorithm jose.SignatureAlgorithm
	issuer    string
	fetched   *atomic.Int64 // how often its public key was asked for
}

// newForger makes OIDC tokens.
func newForger(t *testing.T) forger {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return forger{key, jose.RS256, "https://accounts.google.com", new(atomic.Int64)}
}

// newProxy makes assertions of Identity-Aware Proxy.
func newProxy(t *testing.T) forger {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return forger{key, jose.ES256, "https://cloud.google.com/iap", new(atomic.Int64)}
}

// token returns a token that is good, but for what a change makes of its claims.
func (f forger) token(t *testing.T, change func(claims map[string]any)) string {
	t.Helper()
	return f.signed(t, f.algorithm, jose.JSONWebKey{Key: f.key, KeyID: "k"}, change)
}

// signed returns a token that is signed in some way.
func (f forger) signed(t *testing.T, algorithm jose.SignatureAlgorithm, key any, change func(claims map[string]any)) string {
	t.Helper()
	claims := map[string]any{
		"iss": f.issuer, "aud": audience, "sub": "1",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"email": account, "email_verified": true,
	}
	if change != nil {
		change(claims)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// keys serves the public key, as Google does, and returns its URL.
func (f forger) keys(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.fetched.Add(1)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: f.key.Public(), KeyID: "k", Algorithm: string(f.algorithm), Use: "sig"}}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func segment(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }

// TestProofs sends requests with every kind of token to what takes them: the handler of a queue, an operator's pages behind OIDC,
// and pages behind Identity-Aware Proxy. Only what Google has signed, for this audience and account, now, has an effect, and
// nothing of one kind passes for the other.
func TestProofs(t *testing.T) {
	google, proxy := newForger(t), newProxy(t)
	googleKeys, proxyKeys := google.keys(t), proxy.keys(t)
	ran := 0
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := tasks.Account(r.Context()); got != account {
			t.Errorf("the request is passed on with the account %q", got)
		}
		ran++
	})
	log := slog.New(slog.DiscardHandler)
	q := newHandled(t, &tasks.Options{ServiceAccount: account, KeysURL: googleKeys})
	operators, err := tasks.NewVerifier(audience, []string{"x@y", account}, googleKeys)
	if err != nil {
		t.Fatal(err)
	}
	behind, err := tasks.NewIAPVerifier(audience, []string{account}, proxyKeys)
	if err != nil {
		t.Fatal(err)
	}
	const bearer, assertion = "Authorization", "X-Goog-IAP-JWT-Assertion"
	for _, door := range []struct {
		name           string
		handler        http.Handler
		signer, other  forger
		header, wrong  string // that the proof is in, and another one
		prefix         string
		needsVerified  bool
		otherAlgorithm string
	}{
		{"queue", q.Handler(log, func(context.Context, tasks.Delivery) error { ran++; return nil }), google, proxy, bearer, assertion, "Bearer ", true, "ES256"},
		{"operators", operators.Require(log, page), google, proxy, bearer, assertion, "Bearer ", true, "ES256"},
		{"iap", behind.Require(log, page), proxy, google, assertion, bearer, "", false, "RS256"},
	} {
		stranger := newForger(t)
		if door.signer.algorithm == jose.ES256 {
			stranger = newProxy(t)
		}
		f := door.signer
		set := func(key string, value any) string {
			return f.token(t, func(claims map[string]any) { claims[key] = value })
		}
		good := f.token(t, nil)
		parts := strings.Split(good, ".")
		public, err := x509.MarshalPKIXPublicKey(f.key.Public())
		if err != nil {
			t.Fatal(err)
		}
		unverified := http.StatusForbidden
		if !door.needsVerified {
			unverified = http.StatusOK // the proxy's assertion has no such claim
		}
		for name, c := range map[string]struct {
			token string
			want  int
		}{
			"good":                 {good, 200},
			"none":                 {"", 401},
			"garbage":              {"a.b.c", 401},
			"one segment":          {"abc", 401},
			"four segments":        {good + ".x", 401},
			"not JSON":             {segment("alg") + "." + segment("claims") + "." + parts[2], 401},
			"claims not JSON":      {parts[0] + "." + segment("claims") + "." + parts[2], 401},
			"oversized":            {parts[0] + "." + segment(strings.Repeat("a", 1<<18)) + "." + parts[2], 401},
			"truncated":            {good[:len(good)-5], 401},
			"another key":          {stranger.token(t, nil), 401},
			"unknown key id":       {f.signed(t, f.algorithm, jose.JSONWebKey{Key: f.key, KeyID: "unknown"}, nil), 401},
			"no key id":            {f.signed(t, f.algorithm, f.key, nil), 401},
			"signature removed":    {parts[0] + "." + parts[1] + ".", 401},
			"Cloud Run's removed":  {parts[0] + "." + parts[1] + ".SIGNATURE_REMOVED_BY_GOOGLE", 401},
			"alg none":             {segment(`{"alg":"none"}`) + "." + parts[1] + ".", 401},
			"alg none, signed":     {segment(`{"alg":"none","kid":"k"}`) + "." + parts[1] + "." + parts[2], 401},
			"HS256 by public key":  {f.signed(t, jose.HS256, jose.JSONWebKey{Key: public, KeyID: "k"}, nil), 401},
			"the other algorithm":  {segment(`{"alg":"`+door.otherAlgorithm+`","kid":"k"}`) + "." + parts[1] + "." + parts[2], 401},
			"short signature":      {segment(`{"alg":"`+string(f.algorithm)+`","kid":"k"}`) + "." + parts[1] + ".AA", 401},
			"the other kind":       {door.other.token(t, nil), 401},
			"other, same issuer":   {door.other.token(t, func(claims map[string]any) { claims["iss"] = f.issuer }), 401},
			"claims changed":       {parts[0] + "." + segment(`{"aud":"`+audience+`","exp":9999999999}`) + "." + parts[2], 401},
			"expired":              {set("exp", time.Now().Add(-time.Hour).Unix()), 401},
			"no expiry":            {set("exp", nil), 401},
			"issued in the future": {set("iat", time.Now().Add(3*time.Minute).Unix()), 401},
			"a clock ahead":        {set("iat", time.Now().Add(20*time.Second).Unix()), 200},
			"not valid yet":        {set("nbf", time.Now().Add(3*time.Minute).Unix()), 401},
			"valid by a clock":     {set("nbf", time.Now().Add(20*time.Second).Unix()), 200},
			"valid for long":       {set("nbf", time.Now().Add(-time.Hour).Unix()), 200},
			"valid from a text":    {set("nbf", "tomorrow"), 401},
			"another audience":     {set("aud", "https://other.example/"), 401},
			"no audience":          {set("aud", nil), 401},
			"another issuer":       {set("iss", "https://evil.example"), 401},
			"another account":      {set("email", "evil@p.iam.gserviceaccount.com"), 403},
			"no account":           {set("email", nil), 403},
			"account not verified": {set("email_verified", false), unverified},
			"verified as a string": {set("email_verified", "true"), unverified},
		} {
			ask := func(headers map[string]string, want int) {
				t.Helper()
				before := ran
				r := httptest.NewRequest("POST", audience+"run", strings.NewReader("{}"))
				for key, value := range headers {
					r.Header.Set(key, value)
				}
				// None of these is a proof.
				r.Header.Set("X-CloudTasks-TaskName", "forged")
				r.Header.Set("X-CloudTasks-QueueName", "mapper")
				r.Header.Set("X-Goog-Authenticated-User-Email", "accounts.google.com:"+account)
				w := httptest.NewRecorder()
				door.handler.ServeHTTP(w, r)
				if w.Code != want || (ran > before) != (want == 200) {
					t.Errorf("%s: %s: answer %d, ran: %v; want %d", door.name, name, w.Code, ran > before, want)
				}
				if answer := w.Body.String(); door.name == "queue" && answer != "" || c.token != "" && strings.Contains(answer, c.token) {
					t.Errorf("%s: %s: the answer tells %q", door.name, name, answer)
				}
			}
			headers := map[string]string{}
			if c.token != "" {
				headers[door.header] = door.prefix + c.token
			}
			ask(headers, c.want)
			if c.token != "" { // in the other kind's place it is nothing
				ask(map[string]string{door.wrong: "Bearer " + c.token}, 401)
				ask(map[string]string{door.wrong: c.token}, 401)
			}
		}
		for _, authorization := range []string{"Basic " + good, "Bearer ", good} {
			r := httptest.NewRequest("POST", audience+"run", strings.NewReader("{}"))
			r.Header.Set(bearer, authorization)
			w := httptest.NewRecorder()
			if door.handler.ServeHTTP(w, r); w.Code != 401 {
				t.Errorf("%s: Authorization of %.6s: answer %d", door.name, authorization, w.Code)
			}
		}
	}
	if google.fetched.Load() > 2 || proxy.fetched.Load() > 1 {
		t.Errorf("the keys were fetched %d and %d times: strangers can have that done", google.fetched.Load(), proxy.fetched.Load())
	}
	r := httptest.NewRequest("POST", audience+"run", strings.NewReader("{}"))
	r.Header.Set(bearer, "bearer "+google.token(t, func(claims map[string]any) { claims["iss"] = "accounts.google.com" }))
	w := httptest.NewRecorder()
	if operators.Require(log, page).ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("the old form of the issuer, and the scheme in lower case: answer %d", w.Code)
	}
}

// TestEverybodyBehindTheProxy has a verifier without accounts take whomever the proxy lets through.
func TestEverybodyBehindTheProxy(t *testing.T) {
	proxy := newProxy(t)
	v, err := tasks.NewIAPVerifier(audience, nil, proxy.keys(t))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Goog-IAP-JWT-Assertion", proxy.token(t, func(claims map[string]any) { claims["email"] = "ann@example.com" }))
	if who, err := v.Allow(r); who != "ann@example.com" || err != nil {
		t.Errorf("Allow returned %q, %v", who, err)
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
