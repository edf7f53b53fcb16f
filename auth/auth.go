package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// A Func returns who sent a request, or an error if the request is not allowed. The result who is a
// name or an account; it is empty if the sender is not known. After [ErrUnauthenticated] handlers
// answer 401, and after any other error 403. They log the error, and do not send it to the client.
type Func func(r *http.Request) (who string, err error)

// Errors of a [Func] for requests that are not allowed.
var (
	// ErrUnauthenticated says that a request has no valid token: none, an expired one, or one for
	// another audience. Handlers answer 401.
	ErrUnauthenticated = errors.New("no valid token")

	// ErrForbidden says that a request's token is valid, but that its account may not call, or has
	// no verified e-mail address. Handlers answer 403.
	ErrForbidden = errors.New("the token is of another account")
)

// Anybody allows every request, and does not know who sent it. Use it for emulators, and for a
// service that only authenticated callers can reach.
func Anybody(*http.Request) (who string, err error) { return "", nil }

// Loopback allows requests from this machine to this machine, if they address it as localhost or by
// a loopback IP address. Use it for a dashboard that a program opens for the user who started it.
//
// It refuses requests that a browser sends for a page of another site, even if that site's name
// resolves to this machine. It refuses requests with the headers of a proxy, because anybody may
// have sent them. It does not know who sent a request.
func Loopback(r *http.Request) (who string, err error) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(name) != "" {
			return "", fmt.Errorf("the request has the header %s: a proxy has passed it on", name)
		}
	}
	for _, addr := range []string{r.RemoteAddr, r.Host} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = strings.Trim(addr, "[]")
		}
		named := host == "localhost" && addr == r.Host
		if ip := net.ParseIP(host); !named && (ip == nil || !ip.IsLoopback()) {
			return "", fmt.Errorf("%.100q is not this machine", addr)
		}
	}
	return "", nil
}
