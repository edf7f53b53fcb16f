package tasksemu

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer is what Google's ID tokens name.
const issuer = "https://accounts.google.com"

// A signer makes the OIDC tokens of the deliveries, with a key that lives as
// long as the server.
type signer struct {
	once sync.Once
	key  jose.JSONWebKey
	err  error
}

func (s *signer) init() error {
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

// sign returns a token as Google makes it for a service account, valid for an
// hour.
func (s *signer) sign(email, audience string, now time.Time) (string, error) {
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

// ServeHTTP answers with the public half of the key, as a JSON Web Key Set.
func (s *signer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := s.init(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.key.Public()}})
}
