package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Limits of one attempt to send a message.
const (
	maxAttempts = 4
	attemptTime = 5 * time.Second
	firstWait   = time.Second // doubled after each attempt
	maxAnswer   = 16 << 10    // bytes of an answer that are read, so that its connection can be used again
)

// chatHost is Google Chat's host. It refuses messages with fields that it does not know.
const chatHost = "chat.googleapis.com"

// A post makes one attempt to send a message. It returns nil if the receiver has taken the message.
type post func(ctx context.Context, id string, m Message) *failure

// A failure says why an attempt has failed. Its text has no part of the URL and of the answer.
type failure struct {
	text      string
	temporary bool
	after     time.Duration // the time that the receiver asks to wait; 0: none
}

// retry returns how long to wait before the next attempt, and whether there is one.
func (f *failure) retry(attempts int) (wait time.Duration, again bool) {
	if !f.temporary || attempts >= maxAttempts {
		return 0, false
	}
	return max(firstWait<<(attempts-1), f.after), true
}

// newPost returns a function that makes one attempt to send a message. Only this function has the
// URL and the secret, so that nothing prints them.
func newPost(to *url.URL, key []byte, transport http.RoundTripper) post {
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	onlyText := strings.EqualFold(to.Hostname(), chatHost)
	return func(ctx context.Context, id string, m Message) *failure {
		ctx, cancel := context.WithTimeout(ctx, attemptTime)
		defer cancel()
		var body any = m
		if onlyText {
			body = map[string]string{"text": m.Text}
		}
		encoded, err := json.Marshal(body)
		if err != nil {
			return &failure{text: "the change is no JSON"}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(encoded))
		if err != nil {
			return &failure{text: "the URL is not valid"}
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("User-Agent", "scattermap")
		if now := time.Now(); key != nil {
			sign(r.Header, key, id, now, encoded)
		}
		answer, err := client.Do(r)
		if err != nil {
			return unanswered(err)
		}
		defer answer.Body.Close()
		_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // an error does not matter: the status is known
		return refused(answer.StatusCode, answer.Header.Get("Retry-After"), time.Now())
	}
}

// refused returns the failure for an answer, or nil if the receiver has taken the message. The
// argument after is the answer's header Retry-After.
func refused(code int, after string, now time.Time) *failure {
	f := &failure{text: fmt.Sprintf("the receiver answered %d", code),
		temporary: code == http.StatusTooManyRequests || code >= 500}
	switch {
	case code >= 200 && code < 300:
		return nil
	case code >= 300 && code < 400:
		f.text += ", and redirects are not followed: set the URL to which it leads"
	case f.temporary:
		if seconds, err := strconv.ParseUint(after, 10, 31); err == nil {
			f.after = time.Duration(seconds) * time.Second
		} else if at, err := http.ParseTime(after); err == nil {
			f.after = max(0, at.Sub(now))
		}
	}
	return f
}

// unanswered returns the failure for an error of a client. It does not use the error's text, which
// may contain the URL.
func unanswered(err error) *failure {
	var dns *net.DNSError
	var number syscall.Errno
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return &failure{text: "the receiver's certificate is not valid"}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{text: fmt.Sprintf("the receiver did not answer within %v", attemptTime), temporary: true}
	case errors.As(err, &dns) && dns.IsNotFound:
		return &failure{text: "DNS does not know the URL's host", temporary: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{text: "the receiver closed the connection without an answer", temporary: true}
	case errors.As(err, &number):
		return &failure{text: "the connection failed: " + number.Error(), temporary: true}
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return &failure{text: fmt.Sprintf("the connection failed (%T)", err), temporary: true}
}
