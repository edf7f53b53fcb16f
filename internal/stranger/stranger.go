// Package stranger is for requests that may be anybody's: how they are refused, and what a log
// shows of them.
package stranger

import (
	"net/http"
	"strings"
	"time"
)

// Refuse answers a request whose body is not read: the server closes the connection after the
// answer, and does not wait for what was not sent yet.
func Refuse(w http.ResponseWriter, code int) {
	HangUp(w)
	w.WriteHeader(code)
}

// HangUp has the server close the connection after the answer that is written next.
func HangUp(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // a test's has no connection
}

// Shown returns what a log shows of a text that anybody may have sent.
func Shown(s string) string { return Shorten(s, 200) }

// MaxError is how many bytes of an error a log has.
const MaxError = 2000

// Shorten cuts a text after so many bytes.
func Shorten(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
