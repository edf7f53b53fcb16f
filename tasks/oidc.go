package tasks

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"
)

// A verifier says why a request is not a delivery of the queue.
type verifier func(*http.Request) error

// verifier checks the OIDC token of a request: signature, audience and expiry
// by Google's library, and what that leaves out: issuer, and the account with
// its e-mail verified.
func (q *Queue) verifier() verifier {
	if q.opts.Unauthenticated {
		return func(*http.Request) error { return nil }
	}
	validator, failed := idtoken.NewValidator(context.Background(), option.WithHTTPClient(q.keysClient()))
	return func(r *http.Request) error {
		if failed != nil {
			return fmt.Errorf("token validator: %w", failed)
		}
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			return fmt.Errorf("%w: no bearer token", errToken)
		}
		if err := checkAlgorithm(token); err != nil {
			return fmt.Errorf("%w: %v", errToken, err)
		}
		payload, err := validator.Validate(r.Context(), token, q.opts.Audience)
		if err != nil {
			return fmt.Errorf("%w: %v", errToken, err)
		}
		if payload.Issuer != "https://accounts.google.com" && payload.Issuer != "accounts.google.com" {
			return fmt.Errorf("%w: issuer %q", errToken, payload.Issuer)
		}
		if payload.Claims["email"] != q.opts.ServiceAccount || payload.Claims["email_verified"] != true {
			return errAccount
		}
		return nil
	}
}

// checkAlgorithm lets through the algorithm of Google's service accounts only.
// The library would take tokens of Identity-Aware Proxy too, and panics on some
// that are malformed.
func checkAlgorithm(token string) error {
	encoded, _, _ := strings.Cut(token, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("header: %v", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	if err := json.Unmarshal(decoded, &header); err != nil {
		return fmt.Errorf("header: %v", err)
	}
	if header.Algorithm != "RS256" {
		return fmt.Errorf("algorithm %q, want RS256", header.Algorithm)
	}
	return nil
}

// keysClient returns the HTTP client that fetches the public keys.
func (q *Queue) keysClient() *http.Client {
	if q.opts.KeysURL == "" {
		return http.DefaultClient
	}
	return &http.Client{Transport: keysTransport{q.keys}}
}

// keysTransport fetches from its URL what is asked of Google's.
type keysTransport struct{ from *url.URL }

func (t keysTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL, r.Host = t.from, t.from.Host
	return http.DefaultTransport.RoundTrip(r)
}
