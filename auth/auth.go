package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// A Func returns who has sent a request, or an error for one that is not allowed:
// [ErrUnauthenticated] is answered by 401, and any other error by 403. The log says what it was,
// and the answer does not.
type Func func(r *http.Request) (who string, err error)

// Errors of requests that do not prove what they have to.
var (
	// ErrUnauthenticated says that a request has no valid token. It is answered by 401.
	ErrUnauthenticated = errors.New("no valid token")

	// ErrForbidden says that the token of a request is valid, and of an account that is not let in.
	// It is answered by 403.
	ErrForbidden = errors.New("the token is of another account")
)

// Anybody allows everything, to whoever reaches the service: for emulators, and for a service that
// something in front of it protects.
func Anybody(*http.Request) (who string, err error) { return "", nil }

// Loopback allows everything to whoever sends a request from this machine to this machine, by one
// of its own names: for a dashboard that a program opens for who has started it. A page of another
// site can't pass for one, though its name may lead to this machine. A request that a proxy has
// passed on, and says so, is refused: it may be anybody's.
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
