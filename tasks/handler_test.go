package tasks_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

const (
	account  = "tasks@p.iam.gserviceaccount.com"
	audience = "https://worker.example/"
)

// newHandled returns a queue for a test that uses only its handler.
func newHandled(t *testing.T, o *tasks.Options) *tasks.Queue {
	t.Helper()
	client, err := emulator.ForTest(t, nil).TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := tasks.NewQueue(client, queueName, audience, o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestAttachedAndUnverified checks a queue with both ServiceAccount and InsecureSkipVerify, for a
// service whose tokens Cloud Run verifies. A delivery carries a token, and the handler accepts the
// token without its signature.
func TestAttachedAndUnverified(t *testing.T) {
	authorization := make(chan string, 1)
	server := httptest.NewServer(nil)
	defer server.Close()
	q := newQueue(t, server.URL, nil, &tasks.Options{ServiceAccount: account, InsecureSkipVerify: true})
	handler := q.Handler(slog.Default(), func(context.Context, tasks.Delivery) error { return nil })
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization <- r.Header.Get("Authorization")
		r.Header.Set("Authorization", "Bearer a.b.SIGNATURE_REMOVED_BY_GOOGLE")
		handler.ServeHTTP(w, r)
	})
	if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc"}); err != nil {
		t.Fatal(err)
	}
	if got := <-authorization; !strings.HasPrefix(got, "Bearer ey") {
		t.Errorf("the delivery carries %q", got)
	}
}

// TestTokensOfTheEmulator checks that a queue's handler accepts the tokens of the queue's own
// deliveries, which the emulator has signed.
func TestTokensOfTheEmulator(t *testing.T) {
	delivered := make(chan tasks.Delivery, 1)
	server := httptest.NewServer(nil)
	defer server.Close()
	q := newQueue(t, server.URL, &emulator.Options{KeysAddr: "127.0.0.1:0"}, &tasks.Options{ServiceAccount: account})
	server.Config.Handler = q.Handler(slog.Default(), func(_ context.Context, d tasks.Delivery) error {
		delivered <- d
		return nil
	})
	if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if d := <-delivered; string(d.Body) != "x" {
		t.Errorf("delivery %+v", d)
	}
}

func TestHandlerAnswers(t *testing.T) {
	q := newHandled(t, &tasks.Options{InsecureSkipVerify: true})
	for name, c := range map[string]struct {
		method string
		body   io.Reader
		err    error
		want   int
	}{
		"done":      {"POST", strings.NewReader("{}"), nil, 200},
		"dropped":   {"POST", strings.NewReader("{}"), tasks.Drop(errors.New("no such job")), 200},
		"failed":    {"POST", strings.NewReader("{}"), errors.New("secret contents"), 500},
		"elsewhere": {"POST", strings.NewReader("{}"), tasks.Redeliver(errors.New("this process ends")), 421},
		"no error":  {"POST", strings.NewReader("{}"), tasks.Redeliver(tasks.Drop(nil)), 200},
		"GET":       {"GET", nil, nil, 405},
		"too large": {"POST", bytes.NewReader(make([]byte, 1<<20+1)), nil, 413},
		"largest":   {"POST", bytes.NewReader(make([]byte, 1<<20)), nil, 200},
	} {
		handler := q.Handler(slog.New(slog.DiscardHandler), func(context.Context, tasks.Delivery) error {
			return c.err
		})
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(c.method, audience, c.body))
		if w.Code != c.want || w.Body.Len() > 0 {
			t.Errorf("%s: answer %d %q, want %d and nothing", name, w.Code, w.Body, c.want)
		}
	}
}
