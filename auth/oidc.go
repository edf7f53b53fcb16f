package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"

	"github.com/scattermap/scattermap/internal/stranger"
)

// A Verifier accepts requests of some accounts only. They carry a token that Google has signed: an
// OIDC token ([NewOIDC]), or the assertion of Identity-Aware Proxy ([NewIAP]). It is safe for
// concurrent use.
type Verifier struct {
	validator *idtoken.Validator
	audience  string
	accounts  []string // accounts whose requests are accepted; empty: every account with a valid token
	proof     proof
}

// A proof is a kind of token, and how to verify it. A verifier accepts tokens of only one kind.
type proof struct {
	token     func(*http.Request) string
	missing   string // the text of the error for a request without a token
	algorithm string
	signature int // length of the signature in bytes; 0: any
	issuers   []string
	verified  bool // whether a token must have the claim email_verified; a claim that is present must always be true
}

// oidc describes the tokens that Cloud Tasks, Cloud Scheduler and gcloud send: OIDC tokens in the
// header Authorization.
var oidc = proof{
	token:     func(r *http.Request) string { return bearer(r.Header.Get("Authorization")) },
	missing:   "the request has no bearer token",
	algorithm: "RS256",
	issuers:   []string{"https://accounts.google.com", "accounts.google.com"},
	verified:  true,
}

// iap describes the tokens that Identity-Aware Proxy sends: assertions, as described on its page
// "Get the user's identity with signed headers". The other headers that it sends, such as
// X-Goog-Authenticated-User-Email, prove nothing.
var iap = proof{
	token:     func(r *http.Request) string { return r.Header.Get("X-Goog-IAP-JWT-Assertion") },
	missing:   "the request has no assertion of Identity-Aware Proxy",
	algorithm: "ES256",
	signature: 64,
	issuers:   []string{"https://cloud.google.com/iap"},
}

// bearer returns the token in the value of an Authorization header. It returns "" if that is no
// bearer token.
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// NewOIDC returns a verifier of OIDC tokens in the header Authorization, which Cloud Tasks, Cloud
// Scheduler and gcloud send. A token must have this audience, and the verified e-mail address of
// one of the accounts. The list must not be empty. Google's public keys verify the tokens. For an
// emulator, keysURL is the URL of its keys; in production it is empty.
func NewOIDC(audience string, accounts []string, keysURL string) (*Verifier, error) {
	if len(accounts) == 0 {
		return nil, errors.New("auth: accounts is empty: name the accounts that may call")
	}
	return newVerifier(oidc, audience, accounts, keysURL)
}

// AnyAccount makes [NewIAP] accept every account that Identity-Aware Proxy lets through. It must be
// the only account in the list.
const AnyAccount = "*"

// NewIAP returns a verifier of assertions, the tokens by which Identity-Aware Proxy says who sent a
// request. An assertion must have this audience, such as
// "/projects/NUMBER/locations/REGION/services/SERVICE" for Cloud Run, and the e-mail address of one
// of the accounts. A list of only [AnyAccount] accepts any e-mail address. The list must not be
// empty. Google's public keys verify the assertions. For tests, keysURL is the URL of other keys;
// in production it is empty.
func NewIAP(audience string, accounts []string, keysURL string) (*Verifier, error) {
	if len(accounts) == 0 {
		return nil, errors.New("auth: accounts is empty: name the accounts that may call, or AnyAccount for all " +
			"whom Identity-Aware Proxy lets through")
	}
	if len(accounts) == 1 && accounts[0] == AnyAccount {
		accounts = nil
	}
	return newVerifier(iap, audience, accounts, keysURL)
}

func newVerifier(p proof, audience string, accounts []string, keysURL string) (*Verifier, error) {
	if slices.Contains(accounts, AnyAccount) {
		return nil, errors.New("auth: AnyAccount has to be the only account, and works with NewIAP only: " +
			"anybody " +
			"can get a token of Google")
	}
	if audience == "" || slices.Contains(accounts, "") {
		return nil, errors.New("auth: the audience, or one of the accounts, is empty: a verifier needs them")
	}
	var from *url.URL
	if keysURL != "" {
		var err error
		if from, err = url.Parse(keysURL); err != nil || from.Scheme != "http" && from.Scheme != "https" ||
			from.Host == "" || from.RawQuery != "" || from.Fragment != "" {
			return nil, fmt.Errorf("auth: the URL of the keys is %q, it has to be an http or https URL without a query",
				keysURL)
		}
	}
	client := &http.Client{Transport: newKeysTransport(http.DefaultTransport, from)}
	validator, err := idtoken.NewValidator(context.Background(), option.WithHTTPClient(client))
	if err != nil {
		return nil, fmt.Errorf("auth: token validator: %w", err)
	}
	return &Verifier{validator: validator, audience: audience, accounts: accounts, proof: p}, nil
}

// Authenticate verifies a request, and returns the e-mail address of its account. It is a [Func].
// It checks signature, algorithm, issuer, audience, times and account.
//
// The error is [ErrForbidden] if the token is valid, but of another account or without a verified
// e-mail address. Otherwise it is [ErrUnauthenticated], and [Advice] may say what to do.
func (v *Verifier) Authenticate(r *http.Request) (account string, err error) {
	token := v.proof.token(r)
	account, err = v.allow(r.Context(), token)
	if errors.Is(err, ErrUnauthenticated) {
		err = v.advise(err, token, time.Now())
	}
	return account, err
}

func (v *Verifier) allow(ctx context.Context, token string) (account string, err error) {
	if token == "" {
		return "", fmt.Errorf("%w: %s", ErrUnauthenticated, v.proof.missing)
	}
	if err := v.proof.checkForm(token); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	payload, err := v.validator.Validate(ctx, token, v.audience)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if !slices.Contains(v.proof.issuers, payload.Issuer) {
		return "", fmt.Errorf("%w: the token's issuer is %.100q", ErrUnauthenticated, payload.Issuer)
	}
	if err := checkTimes(payload, time.Now()); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	email, _ := payload.Claims["email"].(string)
	verified, says := payload.Claims["email_verified"]
	if email == "" || len(v.accounts) > 0 && !slices.Contains(v.accounts, email) || (says || v.proof.verified) &&
		verified != true {
		return "", ErrForbidden
	}
	return email, nil
}

type accountKey struct{}

// Account returns the account whose token [Verifier.Require] has verified, from the context of the
// request that it passed on. It is empty in other contexts.
func Account(ctx context.Context) string {
	account, _ := ctx.Value(accountKey{}).(string)
	return account
}

// Require returns a handler that passes on the requests that the verifier accepts. [Account]
// returns their account. It answers other requests with 401 or 403, and logs the errors. The answer
// says only that the token belongs to another account, or that it is invalid. If it is invalid, the
// answer also has the [Advice].
func (v *Verifier) Require(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		account, err := v.Authenticate(r)
		if err == nil {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
			return
		}
		log.LogAttrs(r.Context(), slog.LevelWarn, "request refused", slog.String("path", stranger.Shown(r.URL.Path)),
			slog.String("error", stranger.Shorten(err.Error(), stranger.MaxError)))
		code, text := http.StatusUnauthorized, ErrUnauthenticated.Error()
		if errors.Is(err, ErrForbidden) {
			code, text = http.StatusForbidden, ErrForbidden.Error()
		} else if advice := Advice(err); advice != "" {
			text += ": " + advice
		}
		stranger.HangUp(w)
		http.Error(w, text, code)
	})
}

// checkForm checks the algorithm of a token and the length of its signature. The library would
// accept both kinds of tokens, and panics on some malformed ones.
func (p proof) checkForm(token string) error {
	encoded, rest, _ := strings.Cut(token, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("the token's header: %w", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	if err := json.Unmarshal(decoded, &header); err != nil {
		return fmt.Errorf("the token's header: %w", err)
	}
	if header.Algorithm != p.algorithm {
		return fmt.Errorf("the token's algorithm is %.100q, want %s", header.Algorithm, p.algorithm)
	}
	_, encoded, _ = strings.Cut(rest, ".")
	signature, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("the token's signature: %w", err)
	}
	if p.signature > 0 && len(signature) != p.signature {
		return fmt.Errorf("the token's signature has %d bytes, want %d", len(signature), p.signature)
	}
	return nil
}

// clockSkew is how far the signer's clock may be ahead of this one. It is what Google allows for
// assertions of Identity-Aware Proxy.
const clockSkew = 30 * time.Second

// checkTimes returns an error if a token was issued in the future, or is not valid yet. Google's
// library has already checked when the token expires.
func checkTimes(payload *idtoken.Payload, now time.Time) error {
	latest := now.Add(clockSkew).Unix()
	if payload.IssuedAt > latest {
		return fmt.Errorf("the token was issued at %d, and it is %d here: compare the clocks", payload.IssuedAt,
			now.Unix())
	}
	switch notBefore := payload.Claims["nbf"].(type) {
	case nil:
	case float64:
		if notBefore > float64(latest) {
			return fmt.Errorf("the token is valid from %.0f, and it is %d here: compare the clocks", notBefore,
				now.Unix())
		}
	default:
		return errors.New("the token's claim nbf is not a number")
	}
	return nil
}
