// Package claims reads the claims of an identity token without verifying its signature. Errors use
// them to say what to do next.
package claims

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Gcloud is the audience of the tokens that "gcloud auth print-identity-token" makes for people:
// gcloud's client ID. The command refuses --audiences for people (gcloud 528,
// lib/surface/auth/print_identity_token.py).
const Gcloud = "32555940559.apps.googleusercontent.com"

// Claims are the parts of a token that tell who may use it, for what, and until when.
type Claims struct {
	Audience string `json:"aud"`
	Email    string `json:"email"`
	Subject  string `json:"sub"`
	Expires  int64  `json:"exp"` // in seconds since 1970, or 0 if the token does not say it
}

// Of returns the claims of a token. If they can't be read, ok is false.
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
