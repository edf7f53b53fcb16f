package auth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestKeysAreFetchedSeldom asks for the public keys from many goroutines, at once and one after the
// other. They are fetched once a second, whether or not the fetch succeeds.
func TestKeysAreFetchedSeldom(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		code int
		body string
		err  error
		want error
	}{
		"the keys come":   {200, "keys", nil, nil},
		"an error's page": {500, "sorry", nil, nil},
		"no connection":   {0, "", down, down},
		"more than can be": {200, strings.Repeat("x", maxKeys+1), nil,
			errors.New("the public keys have more than 1048576 bytes")},
		"as many as they be": {200, strings.Repeat("x", maxKeys), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fetches := 0
				keys := newKeysTransport(roundTrip(func(*http.Request) (*http.Response, error) {
					fetches++ // fetches do not overlap: otherwise the race detector would report this line
					time.Sleep(300 * time.Millisecond)
					return &http.Response{StatusCode: c.code, Header: http.Header{"A": {"b"}},
						Body: io.NopCloser(strings.NewReader(c.body))}, c.err
				}), nil)
				ask := func() {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://keys.example/", nil)
					if err != nil {
						t.Error(err)
						return
					}
					resp, err := keys.RoundTrip(r)
					if c.want != nil {
						if err == nil || err.Error() != c.want.Error() {
							t.Errorf("error %v, want %v", err, c.want)
						}
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					body, err := io.ReadAll(resp.Body)
					if string(body) != c.body || err != nil || resp.StatusCode != c.code ||
						resp.Header.Get("A") != "b" {
						t.Errorf("%d bytes, %d, %v; error %v", len(body), resp.StatusCode, resp.Header, err)
					}
				}
				var crowd sync.WaitGroup
				for range 50 {
					crowd.Go(ask)
				}
				crowd.Wait()
				if fetches != 1 {
					t.Errorf("%d fetches for 50 who ask at once", fetches)
				}
				for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
					ask()
				}
				if fetches > 1+10 || fetches < 5 {
					t.Errorf("%d fetches in 10 s, want up to one a second", fetches)
				}
			})
		})
	}
}

// TestFetchOfKeysGoesOn cancels the request that fetches the keys, and one that waits for them. The
// other requests must get the keys.
func TestFetchOfKeysGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		keys := newKeysTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
			fetches++
			select {
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-time.After(3 * time.Second):
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}, nil
		}), nil)
		ask := func(patience time.Duration, want error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://keys.example/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := keys.RoundTrip(r); !errors.Is(err, want) {
				t.Errorf("with a patience of %v: error %v, want %v", patience, err, want)
			}
		}
		var crowd sync.WaitGroup
		crowd.Go(func() { ask(time.Second, nil) })
		synctest.Wait()
		crowd.Go(func() { ask(time.Second, context.DeadlineExceeded) })
		crowd.Go(func() { ask(5*time.Second, nil) })
		crowd.Wait()
		if fetches != 1 {
			t.Errorf("%d fetches", fetches)
		}
	})
}

// TestKeysThatHang checks that a fetch without an answer ends after keysTime.
func TestKeysThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := newKeysTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), nil)
		begun := time.Now()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://keys.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keys.RoundTrip(r); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != keysTime {
			t.Errorf("error %v after %v", err, time.Since(begun))
		}
	})
}
