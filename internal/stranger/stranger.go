// Package stranger has helpers for requests from unknown senders. They refuse a request at little
// cost, and shorten its texts for a log.
package stranger

import (
	"net/http"
	"strings"
	"time"
)

// Refuse answers a request with a status code, without reading its body. The server then closes the
// connection, and does not wait for the rest of the body.
func Refuse(w http.ResponseWriter, code int) {
	HangUp(w)
	w.WriteHeader(code)
}

// HangUp makes the server close the connection after its next answer.
func HangUp(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	// fails in tests whose connection supports no deadline
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
}

// Shown returns the start of a text from an unknown sender, short enough for a log.
func Shown(s string) string { return Shorten(s, 200) }

// MaxError is the maximum length of an error's text in a log, in bytes.
const MaxError = 2000

// Shorten returns a text that is cut off after at most the given number of bytes. Bytes that are
// not UTF-8 are replaced.
func Shorten(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
