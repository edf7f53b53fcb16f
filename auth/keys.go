package auth

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Bounds of a fetch of the public keys, which anybody's request may bring about.
const (
	keysTime  = 10 * time.Second // how long it may take
	keysPause = time.Second      // from its end to the next one
	maxKeys   = 1 << 20          // bytes
)

// keysTransport fetches the public keys for Google's library. That keeps them for as long as they
// say, whatever key a token names; but while they can't be had, or say nothing, it would fetch them
// for each token, and strangers send as many as they like. Here one fetch is under way at a time,
// and its outcome is that of every other within keysPause.
type keysTransport struct {
	base http.RoundTripper
	from *url.URL      // where the keys are; nil: where the library looks
	turn chan struct{} // has room for one: who fetches

	// The last fetch, for whose turn it is.
	ended time.Time
	keys  *http.Response
	body  []byte
	err   error
}

func newKeysTransport(base http.RoundTripper, from *url.URL) *keysTransport {
	return &keysTransport{base: base, from: from, turn: make(chan struct{}, 1)}
}

func (t *keysTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case t.turn <- struct{}{}:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	defer func() { <-t.turn }()
	if t.ended.IsZero() || time.Since(t.ended) >= keysPause {
		t.keys, t.body, t.err = t.fetch(r)
		t.ended = time.Now()
	}
	if t.err != nil {
		return nil, t.err
	}
	keys := *t.keys
	keys.Header, keys.Body, keys.Request = t.keys.Header.Clone(), io.NopCloser(bytes.NewReader(t.body)), r
	return &keys, nil
}

// fetch goes on if the request that has brought it about ends: others wait for its outcome.
func (t *keysTransport) fetch(r *http.Request) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), keysTime)
	defer cancel()
	r = r.Clone(ctx)
	if t.from != nil {
		r.URL, r.Host = t.from, t.from.Host
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys+1))
	if err == nil && len(body) > maxKeys {
		err = fmt.Errorf("the public keys have more than %d bytes", maxKeys)
	}
	return resp, body, err
}
