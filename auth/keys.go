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

// Limits of the requests that fetch the public keys. Each request to a handler may cause a fetch,
// even from a stranger.
const (
	keysTime  = 10 * time.Second // the timeout of a fetch
	keysPause = time.Second      // the time from the end of a fetch to the next one
	maxKeys   = 1 << 20          // the maximum size of an answer in bytes
)

// keysTransport fetches the public keys for Google's library, at most once in keysPause. The
// library caches keys as long as their answer allows. But if a fetch fails, or the answer allows no
// caching, it would fetch the keys again for each token, even of a stranger. This transport makes
// one fetch at a time. All calls until keysPause after its end get the same answer or error.
type keysTransport struct {
	base http.RoundTripper
	from *url.URL      // the URL of the keys; nil: the library's own
	turn chan struct{} // a lock of one element: the goroutine that fetches holds it

	// The following fields hold the outcome of the last fetch. Only the goroutine that holds the
	// lock turn may use them.
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

// fetch fetches the keys, and returns the answer and its body. It continues after the request r
// that caused it has ended, because other requests wait for its outcome.
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
