package tasksemu

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// Limits of a delivery's request, from the documentation of Cloud Tasks.
const (
	maxURL        = 2083 // the maximum size of the encoded URL in bytes
	maxHeaderSize = 80 << 10
)

// checkURL returns an error if the URL of a task is invalid. Like production, it checks only the
// scheme and the length: if a task's URL is broken elsewhere, its deliveries fail.
func checkURL(field, text string) error {
	size := len(text)
	if target, err := url.Parse(text); err == nil {
		size = max(size, len(target.String()))
	}
	scheme := strings.ToLower(text[:min(len(text), len("https://"))])
	switch {
	case text == "":
		return invalid("%s is required.", field)
	case !strings.HasPrefix(scheme, "http://") && scheme != "https://":
		return invalid("HttpTarget.url must start with 'http://' or 'https://'.")
	case size > maxURL:
		return invalid("%s has %d bytes, above the maximum of %d", field, size, maxURL)
	}
	return nil
}

// shorten cuts a long text, for use in an error.
func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// checkHeaders checks the headers of a task or of a queue.
func checkHeaders(field string, headers map[string]string) error {
	size := 0
	for k, v := range headers {
		size += len(k) + len(v)
		if k == "" || strings.ContainsFunc(k, func(r rune) bool {
			// the separators that RFC 9110 excludes from a token
			return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
		}) {
			return invalid("%s: %q is not the name of a header", field, shorten(k))
		}
		if strings.ContainsAny(v, "\r\n\x00") {
			return invalid("%s: the value of %s has a line break or a zero byte", field, shorten(k))
		}
	}
	if size > maxHeaderSize {
		return invalid("%s has %d bytes, above the maximum of %d", field, size, maxHeaderSize)
	}
	return nil
}

// checkMethod returns an error if the HTTP method of a request is invalid.
func checkMethod(field string, m pb.HttpMethod) error {
	if pb.HttpMethod_name[int32(m)] == "" {
		return invalid("%s: there is no method %d", field, m)
	}
	return nil
}

// takesBody reports whether requests with an HTTP method have a body.
func takesBody(m pb.HttpMethod) bool {
	switch m {
	case pb.HttpMethod_HTTP_METHOD_UNSPECIFIED, pb.HttpMethod_POST, pb.HttpMethod_PUT, pb.HttpMethod_PATCH:
		return true
	}
	return false
}

// An authorization is a setting that says which token a delivery carries. The protocol has separate
// types for tasks and for queues; both have these methods.
type authorization interface {
	GetOauthToken() *pb.OAuthToken
	GetOidcToken() *pb.OidcToken
}

// checkTarget checks a queue's HTTP target: the settings by which it changes the requests of its
// tasks.
func checkTarget(t *pb.HttpTarget) error {
	if t == nil {
		return nil
	}
	const field = "Queue.http_target"
	if err := checkMethod(field+".http_method", t.HttpMethod); err != nil {
		return err
	}
	if err := checkHeaders(field+".header_overrides", targetHeaders(t)); err != nil {
		return err
	}
	// The documentation: "both … MUST be specified when using the queue-level authorization
	// override".
	if token := t.GetOauthToken(); token != nil && (token.ServiceAccountEmail == "" || token.Scope == "") {
		return invalid("%s.oauth_token needs service_account_email and scope", field)
	}
	if token := t.GetOidcToken(); token != nil && (token.ServiceAccountEmail == "" || token.Audience == "") {
		return invalid("%s.oidc_token needs service_account_email and audience", field)
	}
	uri := t.UriOverride
	if uri == nil {
		return nil
	}
	switch {
	case uri.Host != nil && (*uri.Host == "" || strings.ContainsAny(*uri.Host, "/?#@ \r\n")):
		return invalid("%s.uri_override.host is not the name of a host: %q", field, shorten(*uri.Host))
	case uri.GetPort() < 0 || uri.GetPort() > 65535:
		return invalid("%s.uri_override.port has to be in [0, 65535], it is %d", field, uri.GetPort())
	case pb.UriOverride_Scheme_name[int32(uri.GetScheme())] == "":
		return invalid("%s.uri_override.scheme: there is no scheme %d", field, uri.GetScheme())
	case pb.UriOverride_UriOverrideEnforceMode_name[int32(uri.UriOverrideEnforceMode)] == "":
		return invalid("%s.uri_override.uri_override_enforce_mode: there is no mode %d", field,
			uri.UriOverrideEnforceMode)
	}
	return checkURL(field+".uri_override", overrideURL("http://host.example/", uri))
}

func targetHeaders(t *pb.HttpTarget) map[string]string {
	headers := make(map[string]string)
	for _, o := range t.GetHeaderOverrides() {
		headers[o.GetHeader().GetKey()] = o.GetHeader().GetValue()
	}
	return headers
}

// overrideURL returns a task's URL after the changes that its queue's settings make. In the mode
// IF_NOT_EXISTS, a setting changes only a part that the task's URL lacks. The result always has a
// scheme and a host.
func overrideURL(text string, o *pb.UriOverride) string {
	u, err := url.Parse(text)
	if err != nil || o == nil {
		return text
	}
	always := o.UriOverrideEnforceMode != pb.UriOverride_IF_NOT_EXISTS
	host, port := u.Hostname(), u.Port()
	if o.Scheme != nil && always {
		u.Scheme = "https"
		if *o.Scheme == pb.UriOverride_HTTP {
			u.Scheme = "http"
		}
	}
	if o.Host != nil && always {
		host = *o.Host
	}
	if o.Port != nil && (always || port == "") {
		if port = strconv.FormatInt(*o.Port, 10); *o.Port == 0 {
			port = ""
		}
	}
	if o.Host != nil || o.Port != nil {
		u.Host = strings.TrimSuffix(net.JoinHostPort(strings.Trim(host, "[]"), port), ":")
	}
	if o.PathOverride != nil && (always || u.Path == "") {
		u.Path, u.RawPath = rooted(o.PathOverride.Path), ""
	}
	if o.QueryOverride != nil && (always || u.RawQuery == "") {
		u.RawQuery = o.QueryOverride.QueryParams
	}
	return u.String()
}

// rooted adds a slash to the start of a path that lacks it. An empty path stays empty.
func rooted(path string) string {
	if path == "" || strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + path
}

// overrideRequest returns the method, URL, body and headers of a task's request, after the changes
// that its queue's settings make. The returned headers are a new map.
func overrideRequest(
	r *pb.HttpRequest, t *pb.HttpTarget,
) (method, target string, body []byte, headers http.Header, auth authorization) {
	m := cmp.Or(t.GetHttpMethod(), r.HttpMethod, pb.HttpMethod_POST)
	target = r.Url
	if t.GetUriOverride() != nil {
		target = overrideURL(target, t.UriOverride)
	}
	if takesBody(m) {
		body = r.Body
	}
	headers = make(http.Header, len(r.Headers)+8)
	for k, v := range r.Headers {
		setHeader(headers, k, v)
	}
	for k, v := range targetHeaders(t) {
		setHeader(headers, k, v)
	}
	auth = r
	if t.GetOauthToken() != nil || t.GetOidcToken() != nil {
		auth = t
	}
	return m.String(), target, body, headers, auth
}

// setHeader sets a header that a client has requested. It ignores headers that Cloud Tasks sets
// itself or reserves.
func setHeader(headers http.Header, key, value string) {
	key = http.CanonicalHeaderKey(key)
	switch {
	case key == "Host", key == "Content-Length", key == "User-Agent",
		strings.HasPrefix(key, "X-Cloudtasks-"), strings.HasPrefix(key, "X-Google-"),
		strings.HasPrefix(key, "X-Appengine-"):
		return
	}
	headers[key] = []string{value}
}
