// Package forge makes tokens for tests: valid ones as Google signs them, and tokens with each kind
// of fault.
//
// A [Forger] signs with a key of its own, which it publishes as Google does. [Forger.Proofs] lists
// all that a request may carry to prove its sender, with the expected status code.
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

// A Forger makes tokens for tests, with its own key. All are of one kind: [OIDC] or [IAP].
type Forger struct {
	t         testing.TB
	key       crypto.Signer
	id        string // the ID of the key
	algorithm jose.SignatureAlgorithm
	issuer    string
	fetched   atomic.Int64
}

// OIDC returns a forger of OIDC tokens, as Cloud Tasks and gcloud send them.
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

// Token returns a signed token of an account for an audience. Apart from the changes it is valid.
func (f *Forger) Token(account, audience string, changes Claims) string {
	f.t.Helper()
	return f.signed(f.algorithm, jose.JSONWebKey{Key: f.key, KeyID: f.id}, account, audience, changes)
}

// signed returns a token that is signed with the given algorithm and key. Apart from the changes
// its claims are valid.
func (f *Forger) signed(algorithm jose.SignatureAlgorithm, key any, account, audience string, changes Claims) string {
	f.t.Helper()
	now := time.Now()
	claims := map[string]any{
		"iss": f.issuer, "aud": audience, "sub": "1", "email": account,
		"iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
	}
	if f.algorithm == jose.RS256 {
		claims["email_verified"] = true // the proxy's assertions lack this claim
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

// Keys serves the forger's public key at a URL, in Google's format, until the test ends, and
// returns the URL. It may also serve the keys of other forgers. Then a receiver refuses their
// tokens for their content, and not because the key is unknown.
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
		_ = json.NewEncoder(w).Encode(keys) // the client may have gone
	}))
	f.t.Cleanup(server.Close)
	return server.URL
}

// Fetched returns how many requests for the public key there were.
func (f *Forger) Fetched() int { return int(f.fetched.Load()) }

// Header returns the HTTP header of a request with a token. The token is in the field that
// receivers of its kind read.
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

// Segment returns a text in base64, as each of a token's three parts is encoded.
func Segment(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }
