package tasks_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/forge"
	"github.com/scattermap/scattermap/tasks"
)

// TestProofs sends requests with every kind of valid and invalid token to each kind of handler: a
// queue's, operators' pages with OIDC, and pages with Identity-Aware Proxy.
func TestProofs(t *testing.T) {
	google, proxy := forge.OIDC(t), forge.IAP(t)
	googleKeys, proxyKeys := google.Keys(proxy), proxy.Keys(google)
	ran := 0
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := auth.Account(r.Context()); got != account {
			t.Errorf("the request is passed on with the account %q", got)
		}
		ran++
	})
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	q := newHandled(t, &tasks.Options{ServiceAccount: account, KeysURL: googleKeys})
	operators, err := auth.NewOIDC(audience, []string{"x@y", account}, googleKeys)
	if err != nil {
		t.Fatal(err)
	}
	behind, err := auth.NewIAP(audience, []string{account}, proxyKeys)
	if err != nil {
		t.Fatal(err)
	}
	everybody, err := auth.NewIAP(audience, []string{auth.AnyAccount}, proxyKeys)
	if err != nil {
		t.Fatal(err)
	}
	for name, door := range map[string]struct {
		handler       http.Handler
		signer, other *forge.Forger
		whoever       bool // whether the handler accepts every account
	}{
		"queue": {q.Handler(logger, func(context.Context, tasks.Delivery) error { ran++; return nil }), google,
			proxy, false},
		"operators": {operators.Require(logger, page), google, proxy, false},
		"iap":       {behind.Require(logger, page), proxy, google, false},
		"iap, everyone": {everybody.Require(logger, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			ran++
		})), proxy, google, true},
	} {
		for _, p := range door.signer.Proofs(door.other, account, audience) {
			if door.whoever && p.OtherAccount {
				p.Code = 200
			}
			before := ran
			log.Reset()
			r := httptest.NewRequest(http.MethodPost, audience+"run", strings.NewReader("{}"))
			r.Header = p.Header
			w := httptest.NewRecorder()
			door.handler.ServeHTTP(w, r)
			if w.Code != p.Code || (ran > before) != (p.Code == 200) {
				t.Errorf("%s: %s: answer %d, ran: %v; want %d", name, p.Name, w.Code, ran > before, p.Code)
			}
			if p.Code != 200 && log.Len() == 0 {
				t.Errorf("%s: %s: the log says nothing", name, p.Name)
			}
			if answer := w.Body.String(); name == "queue" && answer != "" || p.Token != "" &&
				strings.Contains(answer+log.String(), p.Token) {
				t.Errorf("%s: %s: the answer tells %q, the log %q", name, p.Name, answer, log.String())
			}
		}
	}
	if google.Fetched() != 2 || proxy.Fetched() != 2 {
		t.Errorf("two verifiers each have fetched the keys %d and %d times: strangers can have that done",
			google.Fetched(), proxy.Fetched())
	}
}

// TestAllow checks what Verifier.Authenticate returns for a request: the sender, or one of its two
// errors.
func TestAllow(t *testing.T) {
	proxy := forge.IAP(t)
	keys := proxy.Keys()
	for _, accounts := range [][]string{{auth.AnyAccount}, {account, "ann@example.com"}} {
		v, err := auth.NewIAP(audience, accounts, keys)
		if err != nil {
			t.Fatal(err)
		}
		for who, c := range map[string]struct {
			audience string
			want     error
		}{"ann@example.com": {audience, nil}, "eve@example.com": {audience, auth.ErrForbidden},
			account: {"/other", auth.ErrUnauthenticated}} {
			if accounts[0] == auth.AnyAccount && errors.Is(c.want, auth.ErrForbidden) {
				c.want = nil // the proxy has let this account through
			}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header = proxy.Header(proxy.Token(who, c.audience, nil))
			if got, err := v.Authenticate(r); !errors.Is(err, c.want) || (err == nil) != (got == who) ||
				(err != nil) != (got == "") {
				t.Errorf("accounts %q: Allow of %s returned %q, %v, want the error %v", accounts, who, got, err, c.want)
			}
		}
	}
}

// TestClaimed checks that auth.Claimed accepts a token only without its signature. Cloud Run
// removes the signature from tokens that it has verified.
func TestClaimed(t *testing.T) {
	google := forge.OIDC(t)
	verified := func(token string) string {
		return token[:strings.LastIndex(token, ".")] + ".SIGNATURE_REMOVED_BY_GOOGLE"
	}
	whole, robot := google.Token(account, audience, nil), google.Token("", audience, forge.Claims{"email": nil})
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"verified":             {http.Header{"Authorization": {"Bearer " + verified(whole)}}, account},
		"verified, no address": {http.Header{"Authorization": {"Bearer " + verified(robot)}}, "1"},
		"the other header": {http.Header{"Authorization": {"Bearer x"},
			"X-Serverless-Authorization": {"bearer " + verified(whole)}},
			account},
		"the other header decides": {http.Header{"Authorization": {"Bearer " + verified(whole)},
			"X-Serverless-Authorization": {"Bearer x"}}, ""},
		"not verified":      {http.Header{"Authorization": {"Bearer " + whole}}, ""},
		"no token":          {http.Header{}, ""},
		"no identity token": {http.Header{"Authorization": {"Bearer ya29.SIGNATURE_REMOVED_BY_GOOGLE"}}, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = c.header
		if got, err := auth.Claimed(r); got != c.want || (err == nil) != (c.want != "") || err != nil &&
			!errors.Is(err, auth.ErrUnauthenticated) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// TestAdvice checks the advice of auth.Advice for each kind of token that is refused.
func TestAdvice(t *testing.T) {
	google, proxy := forge.OIDC(t), forge.IAP(t)
	v, err := auth.NewOIDC(audience, []string{account}, google.Keys())
	if err != nil {
		t.Fatal(err)
	}
	behind, err := auth.NewIAP(audience, []string{auth.AnyAccount}, proxy.Keys())
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{
		"":            "Authorization: Bearer TOKEN",
		"ya29.access": "this is not an identity token",
		google.Token(account, "32555940559.apps.googleusercontent.com", nil):           "--impersonate-service-account",
		google.Token(account, "https://other", nil):                                    "another audience",
		google.Token(account, audience, forge.Claims{"exp": time.Now().Unix() - 1000}): "expired",
		google.Token("eve@example.com", audience, nil):                                 "",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := v.Authenticate(r)
		if advice := auth.Advice(err); err == nil || !strings.Contains(advice, want) || want == "" && advice != "" {
			t.Errorf("%v has the advice %q, want %q", err, advice, want)
		}
		if _, err := behind.Authenticate(r); auth.Advice(err) != "" {
			t.Errorf("behind the proxy the advice is %q", auth.Advice(err))
		}
	}
}

// TestBadVerifiers checks that NewOIDC and NewIAP refuse settings that would accept nobody, or
// anybody.
func TestBadVerifiers(t *testing.T) {
	for _, bad := range []struct {
		audience string
		accounts []string
		keys     string
	}{{"", []string{"a"}, ""}, {"a", nil, ""}, {"a", []string{""}, ""}, {"a", []string{"a"}, "nowhere"},
		{"a", []string{"a", auth.AnyAccount}, ""}, {"", []string{auth.AnyAccount}, ""}} {
		if _, err := auth.NewOIDC(bad.audience, bad.accounts, bad.keys); err == nil {
			t.Errorf("%+v: no error", bad)
		}
		if _, err := auth.NewIAP(bad.audience, bad.accounts, bad.keys); err == nil {
			t.Errorf("%+v behind the proxy: no error", bad)
		}
	}
	if _, err := auth.NewOIDC("a", []string{auth.AnyAccount}, ""); err == nil {
		t.Error("without a proxy anybody who has a token is let in")
	}
}
