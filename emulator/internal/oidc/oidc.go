// Package oidc makes the OIDC tokens that the Cloud Tasks emulator sends with tasks. It also serves
// the public keys that verify them.
package oidc

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer is the issuer in the ID tokens that Google makes.
const issuer = "https://accounts.google.com"

// A Signer makes the OIDC tokens of deliveries. Its key exists as long as the server.
type Signer struct {
	once sync.Once
	key  jose.JSONWebKey
	err  error

	mu     sync.Mutex
	tokens map[tokenKey]signedToken
}

func (s *Signer) init() error {
	s.once.Do(func() {
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			s.err = err
			return
		}
		s.key = jose.JSONWebKey{Key: private, KeyID: "scattermap-emulator", Algorithm: string(jose.RS256), Use: "sig"}
	})
	return s.err
}

// Sign returns an ID token for a service account. It looks like Google's, and is valid for an hour.
func (s *Signer) Sign(email, audience string, now time.Time) (string, error) {
	if err := s.init(); err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.RS256, Key: s.key},
		new(jose.SignerOptions).WithType("JWT"))
	if err != nil {
		return "", err
	}
	claims := jwt.Claims{
		Issuer:   issuer,
		Subject:  email,
		Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now),
		Expiry:   jwt.NewNumericDate(now.Add(time.Hour)),
	}
	account := map[string]any{"email": email, "email_verified": true}
	return jwt.Signed(signer).Claims(claims).Claims(account).Serialize()
}

// Limits of reusing tokens: how long one is reused, and how many are kept. A new signature takes
// about a millisecond. A reused token is still valid for at least half an hour, which is the
// longest time of a delivery.
const (
	tokenReuse = 30 * time.Minute
	maxTokens  = 1000
)

type tokenKey struct{ email, audience string }

type signedToken struct {
	text string
	at   time.Time
}

// Token returns an OIDC token. It reuses one that is less than half an hour old.
func (s *Signer) Token(email, audience string, now time.Time) (string, error) {
	key := tokenKey{email, audience}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.tokens[key]; ok && now.Sub(t.at) < tokenReuse {
		return t.text, nil
	}
	text, err := s.Sign(email, audience, now)
	if err != nil {
		return "", err
	}
	if s.tokens == nil || len(s.tokens) >= maxTokens {
		s.tokens = make(map[tokenKey]signedToken)
	}
	s.tokens[key] = signedToken{text, now}
	return text, nil
}

// AccessToken returns a text in place of an OAuth access token. No receiver can verify it, because
// only Google can verify real ones. The same account and scope always get the same text.
func AccessToken(email, scope string) string {
	if scope == "" {
		scope = "https://www.googleapis.com/auth/cloud-platform" // the documented default
	}
	sum := sha256.Sum256([]byte(email + "\n" + scope))
	return "ya29.emulator." + base64.RawURLEncoding.EncodeToString(sum[:])
}

// ServeHTTP answers with the public half of the key, as a JSON Web Key Set.
func (s *Signer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := s.init(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.key.Public()}})
}
