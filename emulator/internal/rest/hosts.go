package rest

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// Hosts returns a handler that refuses requests for the names of other hosts. A web page can make
// the name of its own site stand for this machine (DNS rebinding). Then its requests seem to come
// from the same site, and only the Host header shows the page's name.
//
// A request without a host, any IP address, localhost and the allowed names are accepted. If the
// address that the server listens on is no loopback address, other names may stand for this
// machine, for example the name of a service in Docker Compose. Then only requests of browsers are
// refused.
func Hosts(next http.Handler, listens net.Addr, allowed []string) http.Handler {
	addr, ok := listens.(*net.TCPAddr)
	loopback := ok && addr.IP.IsLoopback()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		known := host == "" || net.ParseIP(host) != nil ||
			host == "localhost" || strings.HasSuffix(host, ".localhost") ||
			slices.ContainsFunc(allowed, func(name string) bool { return hostOf(name) == host })
		if !known && (loopback || isBrowser(r)) {
			http.Error(w, fmt.Sprintf("the request is for the host %.100q, and perhaps a web page has sent it: "+
				"if this host is the emulator, start it with --allow-host %[1]q or Options.AllowedHosts", host),
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf returns the name or IP address in a Host header, in lower case.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isBrowser reports whether a request seems to come from a browser. A browser adds no Origin to a
// GET for the same site, and Sec-Fetch headers only for HTTPS and this machine.
func isBrowser(r *http.Request) bool {
	for name := range r.Header {
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return strings.HasPrefix(r.UserAgent(), "Mozilla/")
}
