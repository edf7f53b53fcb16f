package tasksemu

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/emulator/internal/oidc"
)

// httpRequest returns the HTTP request of a delivery.
func (s *Server) httpRequest(ctx context.Context, d *delivery) (*http.Request, error) {
	t := &d.copy
	method, target, body, headers, auth := overrideRequest(t.request, d.config.HttpTarget)
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = headers
	headers["User-Agent"] = []string{userAgent}
	// The keys are already in net/http's canonical form.
	set := func(key, value string) { headers[key] = []string{value} }
	set("X-Cloudtasks-Queuename", d.config.Name[strings.LastIndexByte(d.config.Name, '/')+1:])
	set("X-Cloudtasks-Taskname", t.id)
	set("X-Cloudtasks-Taskretrycount", strconv.Itoa(t.dispatches-1))
	set("X-Cloudtasks-Taskexecutioncount", strconv.Itoa(t.executions))
	set("X-Cloudtasks-Tasketa", eta(t.due))
	if response := t.previous.response(); response != 0 {
		set("X-Cloudtasks-Taskpreviousresponse", strconv.Itoa(response))
		set("X-Cloudtasks-Taskretryreason", "") // production sends it without a text
	}
	if token := auth.GetOidcToken(); token != nil {
		audience := token.Audience
		if audience == "" {
			audience = target
		}
		jwt, err := s.signer.Token(token.ServiceAccountEmail, audience, time.Now())
		if err != nil {
			return nil, err
		}
		set("Authorization", "Bearer "+jwt)
	}
	if token := auth.GetOauthToken(); token != nil {
		set("Authorization", "Bearer "+oidc.AccessToken(token.ServiceAccountEmail, token.Scope))
	}
	return req, nil
}

// eta formats a time as seconds since 1970, with microseconds, for a header.
func eta(t time.Time) string {
	micro := strconv.Itoa(t.Nanosecond() / 1000)
	return strconv.FormatInt(t.Unix(), 10) + "." + "000000"[len(micro):] + micro
}
