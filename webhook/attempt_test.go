package webhook

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestServers sends a message once to real servers with faults. The failure must say what is wrong,
// without the URL, and whether another attempt may help.
func TestServers(t *testing.T) {
	testflag.Sequential(t)
	const token = "T0KEN"
	serve := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	never := httptest.NewServer(http.NotFoundHandler())
	never.Close()
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains about the client
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	elsewhere := serve(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("a redirect was followed: %s", r.URL) })
	for name, test := range map[string]struct {
		url, want string
		temporary bool
	}{
		"closed":               {never.URL, "the connection failed: connection refused", true},
		"signed by a stranger": {stranger.URL, "the receiver's certificate is not valid", false},
		"no TLS":               {strings.Replace(elsewhere, "http:", "https:", 1), "the connection failed (", true},
		"a redirect": {serve(http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect).ServeHTTP),
			"answered 307", false},
		"a connection that ends": {serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			"the receiver closed the connection without an answer", true},
		"an error with a token": {serve(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.URL.String(), http.StatusForbidden)
		}), "answered 403", false},
		"a server that is broken": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
		}), "answered 502", true},
		"an answer without an end": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			for {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
		}), "answered 400", false},
	} {
		u, err := url.Parse(test.url + "/" + token + "?key=" + token)
		if err != nil {
			t.Fatal(err)
		}
		f := newPost(u, nil, nil)(t.Context(), newID(), Message{Text: "job paused: spring (add-credit)"})
		if f == nil {
			t.Errorf("%s: the message was taken", name)
			continue
		}
		if !strings.Contains(f.text, test.want) || f.temporary != test.temporary || strings.Contains(f.text, token) ||
			strings.Contains(f.text, u.Host) {
			t.Errorf("%s: %+v, want %+v", name, f, test)
		}
	}
	err := &url.Error{Op: "Post", URL: "https://x/" + token, Err: &net.OpError{Op: "dial", Err: &net.DNSError{
		Err: "no such host", Name: "x", IsNotFound: true}}}
	if f := unanswered(err); f.text != "DNS does not know the URL's host" || !f.temporary {
		t.Errorf("%+v", f)
	}
}
