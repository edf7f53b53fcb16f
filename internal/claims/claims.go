// Package claims reads the claims of identity tokens without verifying them, for errors that say
// what to do next.
package claims

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Gcloud is the client ID of gcloud. "gcloud auth print-identity-token" makes tokens of people for
// this audience, and refuses --audiences for people (gcloud 528,
// lib/surface/auth/print_identity_token.py).
const Gcloud = "32555940559.apps.googleusercontent.com"

// Claims are the claims that tell who may use a token for what.
type Claims struct {
	Audience string `json:"aud"`
	Email    string `json:"email"`
	Subject  string `json:"sub"`
	Expires  int64  `json:"exp"` // in seconds since 1970; 0: not in the token
}

// Of returns the claims of a token. It is not ok if they can't be read.
func Of(token string) (c Claims, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Claims{}, false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil || json.Unmarshal(text, &c) != nil {
		return Claims{}, false
	}
	return c, true
}

// Removed replaces the signature in a token that Cloud Run has verified
// (https://cloud.google.com/run/docs/troubleshooting#signature-removed).
const Removed = "SIGNATURE_REMOVED_BY_GOOGLE"

// Until returns when the token expires.
func (c Claims) Until() time.Time { return time.Unix(c.Expires, 0) }

// Expired reports whether the token says that it has expired.
func (c Claims) Expired(now time.Time) bool { return c.Expires > 0 && c.Until().Before(now) }
