package auth

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/claims"
)

// errAdvised is an error about a token that was refused, with advice for the client that sent it.
// The handler sends the advice to the client, but not the error.
type errAdvised struct {
	error
	advice string
}

func (e errAdvised) Unwrap() error { return e.error }

// Advice returns what a client can do about a token that [Verifier.Authenticate] has refused, such
// as to get a new one. It contains only data that the client sent. It is empty if there is no
// advice for the error.
func Advice(err error) string {
	var advised errAdvised
	if errors.As(err, &advised) {
		return advised.advice
	}
	return ""
}

// advise adds advice for the client to an error about an invalid OIDC token. It returns err
// unchanged if there is no advice.
func (v *Verifier) advise(err error, token string, now time.Time) error {
	if v.proof.algorithm != oidc.algorithm {
		return err // Identity-Aware Proxy makes these tokens, so the client can't send a better one
	}
	c, ok := claims.Of(token)
	advice := ""
	switch {
	case token == "":
		advice = "send the header Authorization: Bearer TOKEN, with an identity token for the URL of this service"
	case !ok:
		advice = "this is not an identity token; an access token is not one either"
	case c.Audience == claims.Gcloud:
		advice = "gcloud makes a person's token for gcloud, and not for the URL of this service: " +
			"impersonate a service account (gcloud auth print-identity-token --impersonate-service-account=ACCOUNT " +
			"--audiences=URL --include-email)"
	case c.Audience != v.audience:
		advice = "the token is for another audience, not for the URL of this service"
	case c.Expired(now):
		advice = "the token has expired: get another one"
	}
	if advice == "" {
		return err
	}
	return errAdvised{err, advice}
}

// Claimed returns the e-mail address in a request's token, or its subject if it has none. It does
// not verify the token. It is only for a Cloud Run service that requires authentication: Cloud Run
// verifies the token and removes its signature. Make sure that every request reaches the service
// through Cloud Run: otherwise anybody can send a made-up token.
//
// A token that still has its signature was not verified. For it, and without a token, the error is
// [ErrUnauthenticated].
//
// The token is in the header Authorization. If there is also a header X-Serverless-Authorization,
// its token counts, because Cloud Run verifies only that one.
func Claimed(r *http.Request) (account string, err error) {
	header := r.Header.Get("X-Serverless-Authorization")
	if header == "" {
		header = r.Header.Get("Authorization")
	}
	token := bearer(header)
	c, ok := claims.Of(token)
	if !ok || !strings.HasSuffix(token, "."+claims.Removed) {
		return "", fmt.Errorf("%w: Cloud Run has verified none: switch its check on (--no-allow-unauthenticated), "+
			"or verify tokens here with NewOIDC; on your own machine, use Loopback in place of Claimed",
			ErrUnauthenticated)
	}
	return cmp.Or(c.Email, c.Subject), nil
}
