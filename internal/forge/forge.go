// Package forge makes tokens for tests: valid ones, signed in the same way as Google's, and tokens
// with each kind of fault.
//
// A [Forger] signs with a key of its own, and publishes this key as Google does. [Forger.Proofs]
// lists headers that a request may have to prove its sender, with the expected status codes.
package forge

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// A Forger makes tokens for tests, with its own key. Its tokens are either [OIDC] tokens or [IAP]
// assertions.
type Forger struct {
	t         testing.TB
	key       crypto.Signer
	id        string // the ID of the key
	algorithm jose.SignatureAlgorithm
	issuer    string
	fetched   atomic.Int64
}

// OIDC returns a forger of OIDC tokens. Cloud Tasks and gcloud use such tokens.
func OIDC(t testing.TB) *Forger {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return &Forger{t: t, key: key, id: "oidc", algorithm: jose.RS256, issuer: "https://accounts.google.com"}
}

// IAP returns a forger of the assertions of Identity-Aware Proxy.
func IAP(t testing.TB) *Forger {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Forger{t: t, key: key, id: "iap", algorithm: jose.ES256, issuer: "https://cloud.google.com/iap"}
}

// Claims are the claims in which a token differs from a valid one. The value nil removes a claim.
type Claims map[string]any

// Token returns a signed token for an account and an audience. It is valid except for the given
// changes.
func (f *Forger) Token(account, audience string, changes Claims) string {
	f.t.Helper()
	return f.signed(f.algorithm, jose.JSONWebKey{Key: f.key, KeyID: f.id}, account, audience, changes)
}

// signed returns a token that is signed with the given key. Its claims are valid except for the
// given changes.
func (f *Forger) signed(algorithm jose.SignatureAlgorithm, key any, account, audience string, changes Claims) string {
	f.t.Helper()
	now := time.Now()
	claims := map[string]any{
		"iss": f.issuer, "aud": audience, "sub": "1", "email": account,
		"iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
	}
	if f.algorithm == jose.RS256 {
		claims["email_verified"] = true // IAP's assertions do not have this claim
	}
	for name, value := range changes {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

// Keys serves the forger's public key, in Google's format, until the test ends. It returns the URL.
// It can also serve other forgers' keys. A receiver that knows these keys must refuse the other
// forgers' tokens because of their claims.
func (f *Forger) Keys(others ...*Forger) string {
	f.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.fetched.Add(1)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		var keys jose.JSONWebKeySet
		for _, f := range append([]*Forger{f}, others...) {
			keys.Keys = append(keys.Keys, jose.JSONWebKey{Key: f.key.Public(), KeyID: f.id,
				Algorithm: string(f.algorithm), Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(keys) // fails if the client has closed the connection
	}))
	f.t.Cleanup(server.Close)
	return server.URL
}

// Fetched returns how many times the public key was requested.
func (f *Forger) Fetched() int { return int(f.fetched.Load()) }

// Header returns an HTTP header with a token, in the field for this kind of token.
func (f *Forger) Header(token string) http.Header {
	if f.algorithm == jose.ES256 {
		return http.Header{assertion: {token}}
	}
	return http.Header{authorization: {"Bearer " + token}}
}

// The names of the HTTP header fields for the two kinds of tokens.
const (
	authorization = "Authorization"
	assertion     = "X-Goog-Iap-Jwt-Assertion" // in the canonical form of [http.Header]
)

// Segment returns a text as one of the three parts of a token, in base64.
func Segment(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }
