package rest

import (
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestHosts sends requests for several hosts to servers on a loopback address and on all addresses.
func TestHosts(t *testing.T) {
	browser := func(name, value string) http.Header { return http.Header{name: {value}} }
	for _, c := range []struct {
		host            string
		headers         http.Header
		loopback, other bool // whether a server on a loopback address accepts it, and one on all addresses
	}{
		{"127.0.0.1:8081", nil, true, true},
		{"[::1]:8081", nil, true, true},
		{"::1", nil, true, true},
		{"", nil, true, true}, // a health check by HTTP/1.0
		{"LOCALHOST:8081", browser("Origin", "http://localhost:3000"), true, true},
		{"app.localhost", nil, true, true},
		{"192.0.2.7:8081", browser("User-Agent", "Mozilla/5.0"), true, true},
		{"devbox.example:8081", browser("Origin", "http://devbox.example:8081"), true, true},
		{"devbox.example.", nil, true, true},
		{"scattermap:8432", nil, false, true},
		{"scattermap.default.svc:8432", browser("User-Agent", "gcloud-node"), false, true},
		{"evil.example:8081", browser("Origin", "http://evil.example:8081"), false, false},
		{"evil.example:8081", browser("Sec-Fetch-Site", "same-origin"), false, false},
		{"evil.example", browser("User-Agent", "Mozilla/5.0"), false, false},
		{"localhost.evil.example", browser("User-Agent", "Mozilla/5.0"), false, false},
		{"127.0.0.1.evil.example", browser("User-Agent", "Mozilla/5.0"), false, false},
		{"scattermap:8432", browser("Origin", "http://scattermap:8432"), false, false},
	} {
		for addr, want := range map[string]bool{"127.0.0.1": c.loopback, "0.0.0.0": c.other} {
			h := Hosts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
				&net.TCPAddr{IP: net.ParseIP(addr)}, []string{"Devbox.example", ""})
			r := httptest.NewRequest(http.MethodPost, "/reset", nil)
			r.Host = c.host
			maps.Copy(r.Header, c.headers)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch refused := w.Code == http.StatusForbidden; {
			case refused == want:
				t.Errorf("%s, for %s with %v: %d", addr, c.host, c.headers, w.Code)
			case refused && !strings.Contains(w.Body.String(), "--allow-host "):
				t.Errorf("%s, for %s: %q, want the flag", addr, c.host, w.Body)
			}
		}
	}
}
