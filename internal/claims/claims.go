// Package claims reads the claims of an identity token without verifying its signature. Error
// messages use them to tell a user what to do.
package claims

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Gcloud is the audience of tokens that "gcloud auth print-identity-token" prints for a person. It
// is gcloud's client ID. For a person, the command refuses another audience (gcloud 528,
// lib/surface/auth/print_identity_token.py).
const Gcloud = "32555940559.apps.googleusercontent.com"

// Claims are the parts of a token that tell who may use it, for what, and until when.
type Claims struct {
	Audience string `json:"aud"`
	Email    string `json:"email"`
	Subject  string `json:"sub"`
	Expires  int64  `json:"exp"` // in seconds since 1970; 0 if the token has no expiry
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

// Removed is the text by which Cloud Run replaces the signature of a token that it has verified
// (https://cloud.google.com/run/docs/troubleshooting#signature-removed).
const Removed = "SIGNATURE_REMOVED_BY_GOOGLE"

// Until returns when the token expires.
func (c Claims) Until() time.Time { return time.Unix(c.Expires, 0) }

// Expired reports whether the token has an expiry, and it has passed.
func (c Claims) Expired(now time.Time) bool { return c.Expires > 0 && c.Until().Before(now) }
