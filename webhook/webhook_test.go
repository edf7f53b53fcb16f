package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/webhook"
)

const (
	secret = "c2NhdHRlcm1hcCBzaWducyBtZXNzYWdlcyBieSB0aGlz"
	other  = "b3RoZXJzIGRvIG5vdCBrbm93IHdoYXQgaXMgaW4gaGVyZSE="
	token  = "T0KEN"
)

// paused is a change with all fields.
var paused = mapper.StateChange{ID: "spring", Mapper: "add-credit", Queue: "projects/p/locations/l/queues/q",
	From: mapper.StateRunning, To: mapper.StatePaused, Time: time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC),
	Cause: "paused by its failure limit", By: "ann@example.com", Reason: "more than 5 entities have failed",
	Processed: 1200, Failures: 6, Estimated: true}

// A log is the output of a logger, for concurrent use.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newSender returns a sender whose warnings are written to the log.
func newSender(t *testing.T, url, secret string, transport http.RoundTripper) (*webhook.Sender, *log) {
	t.Helper()
	l := new(log)
	s, err := webhook.New(url, secret, &webhook.Options{Logger: slog.New(slog.NewTextHandler(l, nil)),
		Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// A received is a request that a receiver got.
type received struct {
	header http.Header
	body   []byte
}

// TestMessage checks what a receiver gets for a change: the headers, a signature that Verify
// accepts, and all fields.
func TestMessage(t *testing.T) {
	for _, secret := range []string{secret, "whsec_" + secret + "\n", ""} {
		got := make(chan received, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.Method != http.MethodPost || r.URL.Path != "/hook" || r.URL.RawQuery != "token="+token {
				t.Errorf("%s %s: %v", r.Method, r.URL, err)
			}
			got <- received{r.Header, body}
		}))
		defer server.Close()
		s, log := newSender(t, server.URL+"/hook?token="+token+"\n", secret, nil)
		s.Send(t.Context(), paused)
		r := <-got
		if err := webhook.Verify(secret, r.header, r.body); (err == nil) != (secret != "") {
			t.Errorf("with the secret %q: %v", secret, err)
		}
		if signed := r.header.Get("Webhook-Signature") != ""; signed != (secret != "") ||
			r.header.Get("Content-Type") != "application/json" {
			t.Errorf("with the secret %q: %v", secret, r.header)
		}
		var m webhook.Message
		if err := json.Unmarshal(r.body, &m); err != nil {
			t.Fatal(err)
		}
		want := webhook.Message{ID: "spring", Mapper: "add-credit", Queue: "projects/p/locations/l/queues/q",
			From: mapper.StateRunning, To: mapper.StatePaused, Time: paused.Time, Cause: "paused by its failure limit",
			By: "ann@example.com", Reason: "more than 5 entities have failed", Processed: 1200, Failures: 6,
			Estimated: true, Text: "job paused: spring (add-credit) by ann@example.com, paused by its failure limit: " +
				"more than 5 entities have failed. about 1,200 entities processed, 6 failures"}
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("-want +got: %s", diff)
		}
		if err := s.Wait(t.Context()); err != nil || log.String() != "" {
			t.Errorf("%v, %s", err, log)
		}
	}
}

// transport is an http.RoundTripper that calls a function.
type transport func(*http.Request) (*http.Response, error)

// hooksURL is the URL of receivers that are only a transport.
const hooksURL = "https://hooks.example.com/" + token

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(code int, header ...string) *http.Response {
	a := &http.Response{StatusCode: code, Header: make(http.Header), Body: http.NoBody}
	for i := 0; i+1 < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	return a
}

// TestText checks the line that chat services show.
func TestText(t *testing.T) {
	for name, test := range map[string]struct {
		change mapper.StateChange
		want   string
	}{
		"a start": {mapper.StateChange{ID: "a", Mapper: "m", To: mapper.StateRunning, Cause: "started", By: "ann",
			Reason: "spring"}, "job running: a (m) by ann, started: spring"},
		"an end": {mapper.StateChange{ID: "a", Mapper: "m", From: mapper.StateRunning, To: mapper.StateSucceeded,
			Processed: 1, Failures: 0}, "job succeeded: a (m). 1 entity processed, 0 failures"},
		"not counted": {mapper.StateChange{ID: "a", Mapper: "m", From: mapper.StateRunning, To: mapper.StateAborted,
			Cause: "aborted", Processed: -1, Failures: -1}, "job aborted: a (m)"},
		"mentions and lines": {mapper.StateChange{ID: "a", Mapper: "m", To: mapper.StatePaused,
			Reason: "<!channel>\n<https://example.com|here>\x1b", Processed: -1},
			"job paused: a (m): ‹!channel› ‹https://example.com|here› "},
	} {
		got := make(chan string, 1)
		s, _ := newSender(t, hooksURL, secret, transport(func(r *http.Request) (a *http.Response, err error) {
			var m webhook.Message
			if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
				t.Error(err)
			}
			got <- m.Text
			return answer(200), nil
		}))
		s.Send(t.Context(), test.change)
		if text := <-got; text != test.want {
			t.Errorf("%s: %q, want %q", name, text, test.want)
		}
	}
}

// TestGoogleChat checks that Google Chat, which refuses unknown fields, gets only the text.
func TestGoogleChat(t *testing.T) {
	got := make(chan []byte, 1)
	s, _ := newSender(t, "https://chat.googleapis.com/v1/spaces/A/messages?token="+token, "",
		transport(func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			got <- body
			return answer(200), err
		}))
	s.Send(t.Context(), paused)
	var fields map[string]string
	if err := json.Unmarshal(<-got, &fields); err != nil || len(fields) != 1 ||
		!strings.HasPrefix(fields["text"], "job paused: spring") {
		t.Errorf("%v, %v", fields, err)
	}
}

// TestRetries checks which answers are followed by another attempt and when, and what the log says
// if there is none. Times are virtual.
func TestRetries(t *testing.T) {
	const ok = "ok"
	refused := errors.New("dial https://hooks.example.com/" + token)
	for name, test := range map[string]struct {
		answers []any // status codes, answers or errors of the attempts; the last one repeats
		took    time.Duration
		tries   int
		problem string // in the log; ok: none
	}{
		"taken":               {[]any{204}, 0, 1, ok},
		"500, then taken":     {[]any{500, 200}, time.Second, 2, ok},
		"a failed connection": {[]any{refused, 503, 200}, 3 * time.Second, 3, ok},
		"429 without a time":  {[]any{429, 200}, time.Second, 2, ok},
		"429 with a time":     {[]any{answer(429, "Retry-After", "7"), 200}, 7 * time.Second, 2, ok},
		"429 with less time":  {[]any{answer(429, "Retry-After", "0"), 200}, time.Second, 2, ok},
		"429 with a date": {[]any{answer(429, "Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"), 200}, 9 * time.Second,
			2, ok},
		"429 with too long a time": {[]any{answer(429, "Retry-After", "60")}, 0, 1, "answered 429"},
		"429 with what is no time": {[]any{answer(429, "Retry-After", "-5"), 200}, time.Second, 2, ok},
		"always 500":               {[]any{500}, 7 * time.Second, 4, "answered 500"},
		"never a connection":       {[]any{refused}, 7 * time.Second, 4, "the connection failed (*errors.errorString)"},
		"400":                      {[]any{400}, 0, 1, "answered 400"},
		"a redirect": {[]any{answer(307, "Location", "https://elsewhere.example.com/")}, 0, 1,
			"answered 307, and redirects are not followed"},
		"no answer":                  {[]any{time.Hour}, 27 * time.Second, 4, "did not answer within 5s"},
		"no answer, and then a late": {[]any{time.Hour, 4 * time.Second, 200}, 10 * time.Second, 2, ok},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, tries, ids := time.Now(), 0, make(map[string]bool)
				var ended time.Time
				s, log := newSender(t, hooksURL, secret,
					transport(func(r *http.Request) (*http.Response, error) {
						tries++
						defer func() { ended = time.Now() }()
						body, err := io.ReadAll(r.Body)
						if err == nil {
							err = webhook.Verify(secret, r.Header, body)
						}
						if err != nil || r.URL.Host != "hooks.example.com" {
							t.Errorf("%s: %v", r.URL, err)
						}
						ids[r.Header.Get("Webhook-Id")] = true
						switch a := test.answers[min(tries, len(test.answers))-1].(type) {
						case int:
							return answer(a), nil
						case *http.Response:
							return a, nil
						case time.Duration:
							select {
							case <-time.After(a):
								return answer(200), nil
							case <-r.Context().Done():
								return nil, r.Context().Err()
							}
						default:
							return nil, a.(error)
						}
					}))
				s.Send(t.Context(), paused)
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("Send took %v", took)
				}
				if err := s.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				if tries != test.tries || ended.Sub(start) != test.took || len(ids) != 1 {
					t.Errorf("%d attempts in %v with the IDs %v, want %d in %v", tries, ended.Sub(start), ids,
						test.tries, test.took)
				}
				if text := log.String(); (text == "") != (test.problem == ok) ||
					test.problem != ok && !strings.Contains(text, test.problem) || strings.Contains(text, token) ||
					strings.Contains(text, "example.com/") {
					t.Errorf("the log says %s", text)
				}
			})
		})
	}
}

// TestSlowReceiver sends many changes to a receiver that never answers. Only the first may take the
// caller's time, and the others wait in the background, up to a limit. Times are virtual.
func TestSlowReceiver(t *testing.T) {
	testflag.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		parallel, most := 0, 0
		var mu sync.Mutex
		s, log := newSender(t, hooksURL, secret, transport(func(r *http.Request) (a *http.Response, err error) {
			mu.Lock()
			parallel++
			most = max(most, parallel)
			mu.Unlock()
			<-r.Context().Done()
			mu.Lock()
			parallel--
			mu.Unlock()
			return nil, r.Context().Err()
		}))
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a caller that is gone: the message is sent nevertheless
		for range 150 {
			s.Send(ctx, paused)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("150 changes took %v of the caller's time, want 2s", took)
		}
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Wait(limited); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "100 messages not sent") {
			t.Errorf("%v", err)
		}
		if err := s.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 32*time.Second {
			t.Errorf("%v until the last message was given up", took)
		}
		if n := strings.Count(log.String(), "\n"); n != 150 || most != 4 ||
			strings.Count(log.String(), "100 messages are waiting") != 50 {
			t.Errorf("%d requests at once, and %d lines: %.2000s", most, n, log)
		}
		// The receiver has recovered, as far as the sender knows: it waits again.
		start = time.Now()
		s.Send(t.Context(), paused)
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("%v, want 2s", took)
		}
		if err := s.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingIsPrinted checks that a sender shows neither its URL nor its secret.
func TestNothingIsPrinted(t *testing.T) {
	s, _ := newSender(t, hooksURL, secret, nil)
	encoded, err := json.Marshal(struct{ S any }{s})
	text := string(encoded)
	for _, v := range []any{s, struct{ S any }{s}, []any{s}, reflect.ValueOf(s).Elem()} {
		text += fmt.Sprintf("%v %+v %#v", v, v, v)
	}
	if err != nil || strings.Contains(text, token) || strings.Contains(text, "hooks.example.com") ||
		strings.Contains(text, secret) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestPanic checks that a panic of Options.Transport is logged without its text.
func TestPanic(t *testing.T) {
	s, log := newSender(t, hooksURL, secret, transport(func(r *http.Request) (a *http.Response, err error) {
		panic(r.URL.String())
	}))
	s.Send(t.Context(), paused)
	if err := s.Wait(t.Context()); err != nil || !strings.Contains(log.String(), "Options.Transport has panicked") ||
		strings.Contains(log.String(), token) {
		t.Errorf("%v, %s", err, log)
	}
}

// TestStopped checks which changes the filter lets through.
func TestStopped(t *testing.T) {
	got := make(map[mapper.State]bool)
	s, err := webhook.New(hooksURL, secret, &webhook.Options{Filter: webhook.Stopped,
		Transport: transport(func(r *http.Request) (*http.Response, error) {
			var m webhook.Message
			err := json.NewDecoder(r.Body).Decode(&m)
			got[m.To] = true
			return answer(200), err
		})})
	if err != nil {
		t.Fatal(err)
	}
	states := []mapper.State{mapper.StateRunning, mapper.StatePaused, mapper.StateFailed, mapper.StateAborted,
		mapper.StateSucceeded, mapper.StateSucceededWithFailures}
	for _, to := range states {
		s.Send(t.Context(), mapper.StateChange{ID: "a", To: to})
		if err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got[mapper.StateRunning] || len(got) != len(states)-1 {
		t.Errorf("sent: %v", got)
	}
}

// TestNewRefused checks the errors for wrong URLs and secrets, which must not contain them.
func TestNewRefused(t *testing.T) {
	for _, test := range []struct{ url, secret, want string }{
		{"", secret, "the URL is empty"}, {" \n", secret, "the URL is empty"},
		{"hooks.example.com/" + token, secret, "has to be like https://HOST/PATH"},
		{"https:///" + token, secret, "has to be like https://HOST/PATH"},
		{"https://:443/" + token, secret, "has to be like https://HOST/PATH"},
		{"https://hooks.example.com/%zz" + token, secret, "has to be like https://HOST/PATH"},
		{"https://hooks.example.com/\x00" + token, secret, "has to be like https://HOST/PATH"},
		{"ftp://hooks.example.com/" + token, secret, "has to be like https://HOST/PATH"},
		{"https://ann:" + token + "@hooks.example.com/", secret, "has a user"},
		{"https://hooks.example.com/#" + token, secret, "a fragment"},
		{"http://hooks.example.com/" + token, secret, "has to start with https://"},
		{"http://localhost.example.com/" + token, secret, "has to start with https://"},
		{"http://10.0.0.1/" + token, secret, "has to start with https://"},
		{"https://hooks.example.com/" + token, token, "the secret has to be 24 to 64 bytes in base64"},
		{"https://hooks.example.com/" + token, "c2hvcnQ=" + token, "the secret has to be"},
		{"https://hooks.example.com/" + token, strings.Repeat(secret, 3), "the secret has to be"},
		{"https://hooks.example.com/" + token, "whsec_", "the secret has to be"},
	} {
		s, err := webhook.New(test.url, test.secret, nil)
		if err == nil || s != nil || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), token) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q, %q: %v, want %q", test.url, test.secret, err, test.want)
		}
	}
	for _, good := range []string{"http://localhost:8080/x", "http://127.0.0.1/", "http://[::1]:5/", "HTTPS://a/b?c"} {
		if _, err := webhook.New(good, secret, nil); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// TestVerify checks which requests Verify accepts and refuses. Times are virtual.
func TestVerify(t *testing.T) {
	header := func(name, value string) func(*received) { return func(r *received) { r.header.Set(name, value) } }
	without := func(name string) func(*received) { return func(r *received) { r.header.Del(name) } }
	const wrong = "the signature is wrong"
	for name, test := range map[string]struct {
		secret string
		change func(*received)
		after  time.Duration
		want   string // in the error; empty: the request is accepted
	}{
		"as sent":        {secret: secret},
		"another prefix": {secret: "whsec_" + secret},
		"two signatures": {secret: secret, change: func(r *received) {
			r.header.Set("Webhook-Signature", "v1,eA== v1a,x "+r.header.Get("Webhook-Signature"))
		}},
		"another secret": {secret: other, want: wrong},
		"no secret":      {want: "the secret has to be"},
		"another body": {secret: secret, change: func(r *received) {
			r.body = bytes.Replace(r.body, []byte("spring"), []byte("autumn"), 1)
		}, want: wrong},
		"another time": {secret: secret, change: header("Webhook-Timestamp", "946684801"), want: wrong},
		"another ID":   {secret: secret, change: header("Webhook-Id", "msg_x"), want: wrong},
		"a part of it": {secret: secret, change: func(r *received) {
			r.header.Set("Webhook-Signature", r.header.Get("Webhook-Signature")[:40])
		}, want: wrong},
		"another version": {secret: secret, change: func(r *received) {
			r.header.Set("Webhook-Signature", "v2"+r.header.Get("Webhook-Signature")[2:])
		}, want: wrong},
		"no signature": {secret: secret, change: without("Webhook-Signature"), want: "is not signed"},
		"no time":      {secret: secret, change: without("Webhook-Timestamp"), want: "is not signed"},
		"no ID":        {secret: secret, change: without("Webhook-Id"), want: "is not signed"},
		"in time":      {secret: secret, after: webhook.Tolerance},
		"too late":     {secret: secret, after: webhook.Tolerance + time.Second, want: "was signed at"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent received
				s, _ := newSender(t, hooksURL, secret,
					transport(func(r *http.Request) (*http.Response, error) {
						body, err := io.ReadAll(r.Body)
						sent = received{r.Header.Clone(), body}
						return answer(200), err
					}))
				s.Send(t.Context(), paused)
				if test.change != nil {
					test.change(&sent)
				}
				time.Sleep(test.after)
				err := webhook.Verify(test.secret, sent.header, sent.body)
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
			})
		})
	}
}
