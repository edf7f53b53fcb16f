package tasks

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
)

// A Verifier takes the requests of some accounts only, which prove themselves
// by an OIDC token of Google's.
type Verifier struct {
	validator *idtoken.Validator
	audience  string
	accounts  []string
}

// NewVerifier returns a verifier of tokens that are meant for an audience, of
// accounts with these e-mail addresses. The public keys are fetched from
// keysURL, or from Google if it is empty.
func NewVerifier(audience string, accounts []string, keysURL string) (*Verifier, error) {
	if audience == "" || len(accounts) == 0 || slices.Contains(accounts, "") {
		return nil, errors.New("tasks: a verifier needs an audience and the accounts that it takes")
	}
	client := http.DefaultClient
	if keysURL != "" {
		from, err := parseURL("the URL of the keys", keysURL)
		if err != nil {
			return nil, err
		}
		client = &http.Client{Transport: keysTransport{from}}
	}
	validator, err := idtoken.NewValidator(context.Background(), option.WithHTTPClient(client))
	if err != nil {
		return nil, fmt.Errorf("tasks: token validator: %w", err)
	}
	return &Verifier{validator: validator, audience: audience, accounts: accounts}, nil
}

// Verify returns an error unless the request carries a valid token of one of
// the accounts. Signature, audience and expiry are checked by Google's library,
// and here what that leaves out: algorithm, issuer, that it is valid already, and
// the account with its e-mail verified.
func (v *Verifier) Verify(r *http.Request) error {
	_, err := v.account(r)
	return err
}

// account verifies a request, and returns the account that has sent it.
func (v *Verifier) account(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", fmt.Errorf("%w: no bearer token", errToken)
	}
	if err := checkAlgorithm(token); err != nil {
		return "", fmt.Errorf("%w: %w", errToken, err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), keysTime)
	defer cancel()
	payload, err := v.validator.Validate(ctx, token, v.audience)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errToken, err)
	}
	if payload.Issuer != "https://accounts.google.com" && payload.Issuer != "accounts.google.com" {
		return "", fmt.Errorf("%w: issuer %.100q", errToken, payload.Issuer)
	}
	if err := checkTimes(payload, time.Now()); err != nil {
		return "", fmt.Errorf("%w: %w", errToken, err)
	}
	email, _ := payload.Claims["email"].(string)
	if !slices.Contains(v.accounts, email) || payload.Claims["email_verified"] != true {
		return "", errAccount
	}
	return email, nil
}

type accountKey struct{}

// Account returns the account whose token [Verifier.Require] has verified, from the context of the
// request that it has passed on. It is empty elsewhere.
func Account(ctx context.Context) string {
	account, _ := ctx.Value(accountKey{}).(string)
	return account
}

// Require returns a handler that answers 401 or 403 to requests that the
// verifier does not take, and passes on the others, with their [Account]. The log says why; the answer
// says no more than that a token was wrong, or its account.
func (v *Verifier) Require(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		account, err := v.account(r)
		if err == nil {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
			return
		}
		log.LogAttrs(r.Context(), slog.LevelWarn, "request refused", slog.String("path", Shown(r.URL.Path)), slog.String("error", shorten(err.Error(), maxError)))
		text := errToken
		if errors.Is(err, errAccount) {
			text = errAccount
		}
		hangUp(w)
		http.Error(w, text.Error(), statusOf(err))
	})
}

// checkAlgorithm lets through the algorithm of Google's service accounts only.
// The library would take tokens of Identity-Aware Proxy too, and panics on some
// that are malformed.
func checkAlgorithm(token string) error {
	encoded, _, _ := strings.Cut(token, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	if err := json.Unmarshal(decoded, &header); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if header.Algorithm != "RS256" {
		return fmt.Errorf("algorithm %.100q, want RS256", header.Algorithm)
	}
	return nil
}

// clockSkew is how far the clock of whoever signs tokens may be ahead of this one.
const clockSkew = time.Minute

// keysTime is how long the public keys may take, if they have to be fetched.
const keysTime = 10 * time.Second

// checkTimes lets no token through that was issued in the future, or is not valid yet.
func checkTimes(payload *idtoken.Payload, now time.Time) error {
	latest := now.Add(clockSkew).Unix()
	if payload.IssuedAt > latest {
		return fmt.Errorf("issued at %d, and now it is %d", payload.IssuedAt, now.Unix())
	}
	switch notBefore := payload.Claims["nbf"].(type) {
	case nil:
	case float64:
		if notBefore > float64(latest) {
			return fmt.Errorf("not valid before %.0f, and now it is %d", notBefore, now.Unix())
		}
	default:
		return errors.New("what it is not valid before is no number")
	}
	return nil
}

// keysTransport fetches from its URL what is asked of Google's.
type keysTransport struct{ from *url.URL }

func (t keysTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL, r.Host = t.from, t.from.Host
	return http.DefaultTransport.RoundTrip(r)
}
