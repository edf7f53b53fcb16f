package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/scattermap/scattermap/emulator"
)

// TestBehindProxy has operators come through Identity-Aware Proxy: the service takes its assertions, of those whom OPERATORS lists, and neither
// their own tokens nor the proxy's plain headers.
func TestBehindProxy(t *testing.T) {
	const audience = "/projects/12/locations/europe-west1/services/credit"
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0", KeysAddr: "127.0.0.1:0"})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	}))
	defer keys.Close()
	assertion := func(email, audience string) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": "https://cloud.google.com/iap", "aud": audience, "sub": "accounts.google.com:1", "email": email,
			"iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for name, value := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": "test", "TASKS_QUEUE": queue, "CREATE_QUEUES": "true", "SERVICE_URL": "https://credit.run.app", "TASKS_SERVICE_ACCOUNT": robot, "OIDC_KEYS_URL": e.KeysURL(),
		"OPERATORS": "ann@example.com", "IAP_AUDIENCE": audience, "IAP_KEYS_URL": keys.URL,
		"DATASTORE_EMULATOR_HOST": e.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST": e.TasksAddr(), "K_SERVICE": "",
	} {
		t.Setenv(name, value)
	}
	handler := newHandler(t)
	own, err := e.Token("ann@example.com", "https://credit.run.app")
	if err != nil {
		t.Fatal(err)
	}
	const header = "X-Goog-IAP-JWT-Assertion"
	for name, c := range map[string]struct {
		header, value string
		want          int
	}{
		"her assertion":        {header, assertion("ann@example.com", audience), 200},
		"somebody else's":      {header, assertion("eve@example.com", audience), 403},
		"for another service":  {header, assertion("ann@example.com", audience+"2"), 401},
		"her own token":        {"Authorization", "Bearer " + own, 401},
		"her token as one":     {header, own, 401},
		"the plain header":     {"X-Goog-Authenticated-User-Email", "accounts.google.com:ann@example.com", 401},
		"an assertion as hers": {"Authorization", "Bearer " + assertion("ann@example.com", audience), 401},
	} {
		r := httptest.NewRequest("GET", "/jobs", nil)
		r.Header.Set(c.header, c.value)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.want)
		}
	}
	// Tasks carry tokens of their own account, whoever lets operators in.
	r := httptest.NewRequest("POST", "/mapper/range", nil)
	r.Header.Set(header, assertion("ann@example.com", audience))
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("a task with an assertion: %d", w.Code)
	}
}

// newHandler returns the handler of the service that the environment describes.
func newHandler(t *testing.T) http.Handler {
	t.Helper()
	c, err := configFrom(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	_, handler, open, err := newService(t.Context(), c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(open.close)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}
