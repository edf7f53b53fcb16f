package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/claims"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
)

// A service is a client of the jobs API of one service, with the user's login.
type service struct {
	address      string
	tokenCommand string
	reason       string

	way   *login // the login that the command login tries; nil: use the stored one
	mutex sync.Mutex
	token string // the last token that was sent
	from  string // where that token comes from, for errors

	flags *pflag.FlagSet // the flags of the command; nil: it has none of a service

	straight straight // if the flags name a database and a queue, requests go to a jobs API in this process
}

// define defines the flags that name a service and its tokens.
func (s *service) define(flags *pflag.FlagSet) {
	s.flags = flags
	flags.StringVar(&s.address, "service", os.Getenv("SCATTERMAP_SERVICE"), "the service's `URL`: its jobs API's "+
		"address without /jobs; by default $SCATTERMAP_SERVICE, or the service of \"scattermap login\"")
	s.straight.define(flags)
	flags.StringVar(&s.tokenCommand, "token-command", "", "a `command` that prints an identity token to send. "+
		"It is not run if $SCATTERMAP_TOKEN is set, or if the service is on this machine. By default, the token is "+
		"from \"scattermap login\", or else from \"gcloud auth print-identity-token\"")
}

// defineReason defines the flag --reason, for commands that change a job.
func (s *service) defineReason(flags *pflag.FlagSet) {
	flags.StringVar(&s.reason, "reason", "", "the `reason`, for the job's history and the log")
}

// planPath is the path of plans, relative to the path of jobs in the jobs API.
const planPath = "plan"

// callTime is the timeout of a request to the jobs API. A verification reads all records of a job,
// and may take proofTime.
const (
	callTime  = time.Minute
	proofTime = 10 * time.Minute
)

// call sends a request to the jobs API, and decodes the answer into v. If body is nil, the request
// has no body. If v is nil, the answer is ignored.
func (s *service) call(ctx context.Context, method, path string, parameters url.Values, body, v any) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if _, list := v.(*operator.MapperList); !list && method == http.MethodGet && path == mappersPath {
		return usageError(fmt.Errorf("%q is no job, but a word of the jobs API: \"scattermap mappers\" lists the "+
			"mappers, and \"scattermap jobs\" lists the jobs", path))
	}
	limit := callTime
	if strings.HasSuffix(path, verifyPath) {
		limit = proofTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	if method == http.MethodPost && path != planPath && s.reason != "" { // a plan changes nothing, so it has no reason
		if parameters == nil {
			parameters = make(url.Values)
		}
		parameters.Set("reason", s.reason)
	}
	if s.straight.queue != "" {
		return s.callStraight(ctx, method, path, parameters, content, v)
	}
	return s.callService(ctx, method, path, parameters, content, v)
}

// An unsure error leaves it open whether the service has done what the request asks.
type unsure struct{ error }

// Unwrap returns the error without the mark.
func (u unsure) Unwrap() error { return u.error }

// callStraight makes a request to a jobs API in this process, which works on the database and queue
// that the flags name. The parameter content is the request's body. The answer is decoded into v,
// unless v is nil.
func (s *service) callStraight(
	ctx context.Context, method, path string, parameters url.Values, content []byte, v any,
) error {
	code, text, err := s.straight.call(ctx, method, path, parameters, bytes.NewReader(content))
	switch {
	case err != nil:
		return err
	case code == http.StatusInternalServerError:
		return unsure{fmt.Errorf("%s, %v", operator.Line(string(text), 1000), &s.straight.db)}
	case code != http.StatusOK:
		return refusalOf(text)
	case v == nil:
		return nil
	}
	return json.Unmarshal(text, v)
}

// callService makes a request to the service's jobs API. The parameter content is the request's
// body. The answer is decoded into v, unless v is nil. If the service refuses a stored token,
// callService gets a new token and tries once more.
func (s *service) callService(
	ctx context.Context, method, path string, parameters url.Values, content []byte, v any,
) error {
	base, err := s.base()
	if err != nil {
		return err
	}
	to := base.JoinPath("jobs", path)
	to.RawQuery = parameters.Encode()
	sent, err := s.prove(ctx, base, false)
	if err != nil {
		return err
	}
	code, text, err := s.send(ctx, method, to, content, sent.token)
	// the login's account may have changed since the token was stored
	if (code == http.StatusUnauthorized || code == http.StatusForbidden) && sent.kept {
		if sent, err = s.prove(ctx, base, true); err != nil {
			return err
		}
		code, text, err = s.send(ctx, method, to, content, sent.token)
	}
	switch {
	case err != nil:
		return err
	case code >= http.StatusInternalServerError:
		return unsure{s.refusal(code, text, sent)}
	case code != http.StatusOK:
		return s.refusal(code, text, sent)
	}
	if v == nil {
		return nil
	}
	switch err := json.Unmarshal(text, v); {
	case err != nil && json.Unmarshal(text, new(map[string]json.RawMessage)) == nil:
		return fmt.Errorf("this command line can't read an answer of the service at %s, which may be newer: %w; "+
			"install the service's version of scattermap", s.address, err)
	case err != nil:
		return fmt.Errorf("%s is not a service of scattermap: %w", to.Redacted(), err)
	}
	return nil
}

// send makes a request with a token. It returns the status code and the body of the answer.
func (s *service) send(
	ctx context.Context, method string, to *url.URL, content []byte, token string,
) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	if content != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	// Do not follow a redirection: it leads to a page where people log in.
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // unwrap the error: its text contains the URL, which is added below
			err = failed.Err
		}
		err = fmt.Errorf("the service at %s does not answer: %w; set its URL by --service or $SCATTERMAP_SERVICE",
			s.address, err)
		if unreached := new(net.OpError); errors.As(err, &unreached) && unreached.Op == "dial" {
			return 0, nil, err
		}
		return 0, nil, unsure{err}
	}
	defer func() { _ = answer.Body.Close() }() // the body was only read, so an error does not matter
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return 0, nil, unsure{fmt.Errorf("the connection to %s broke off: %w", s.address, err)}
	}
	if answer.Header.Get("X-Goog-IAP-Generated-Response") != "" {
		return 0, nil,
			fmt.Errorf("Identity-Aware Proxy protects %s: open %s in a browser, or use a URL of the service "+
				"without the proxy",
				s.address, s.address+"/dashboard/")
	}
	return answer.StatusCode, text, nil
}

// checkPath returns an error if a part of a path is neither the ID of a job nor an action. Such a
// part could lead to another path of the API.
func checkPath(path string) error {
	if path == "" {
		return nil // the list of jobs
	}
	for segment := range strings.SplitSeq(path, "/") {
		if !names.JobID(segment) { // names of actions are also valid IDs of jobs
			return usageError(fmt.Errorf("%.110q is not the ID of a job (1 to 100 letters, digits, '-' and '_', "+
				"and not __x__)", segment))
		}
	}
	return nil
}

// base returns the URL of the service.
func (s *service) base() (*url.URL, error) {
	if s.address == "" {
		all, err := readLogins()
		if err != nil {
			return nil, err
		}
		s.address = all.Current
	}
	if s.address == "" {
		return nil, usageError(errors.New("no service: run \"scattermap login URL\", or set --service or " +
			"$SCATTERMAP_SERVICE to a URL such as https://credit-123.europe-west1.run.app; with --straight QUEUE the " +
			"command needs no service"))
	}
	u, err := url.Parse(s.address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || u.User != nil {
		return nil, usageError(fmt.Errorf("the service is %q, it has to be an http or https URL", s.address))
	}
	if strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/jobs") {
		return nil, usageError(fmt.Errorf("the service is %q: leave out /jobs, and what follows it", s.address))
	}
	return u, nil
}

// goPackage is the prefix of errors from package mapper. Errors are printed without it, because it
// means nothing to users of a command line.
const goPackage = "mapper: "

// refusalOf returns the error in the body of an answer whose code is not a success.
func refusalOf(text []byte) error {
	var answer struct {
		Error string   `json:"error"`
		Parts []string `json:"error_parts"`
	}
	said := strings.TrimSpace(string(text))
	if json.Unmarshal(text, &answer) != nil || answer.Error == "" {
		return errors.New(operator.Line(said, 1000))
	}
	answer.Error = strings.TrimPrefix(answer.Error, goPackage)
	if answer.Parts == nil { // an older service does not send parts, and no service does if the error names no setting
		return partsOf(operator.Line(answer.Error, 1000))
	}
	for i := range answer.Parts {
		answer.Parts[i] = operator.Line(answer.Parts[i], 1000)
	}
	if len(answer.Parts) > 0 {
		answer.Parts[0] = strings.TrimPrefix(answer.Parts[0], goPackage)
	}
	return naming(answer.Parts)
}

// noInstance returns the error for an answer of Cloud Run, in HTML or plain text, which it gives in
// place of the service.
func (s *service) noInstance(code int, said string) error {
	what := http.StatusText(code)
	if said != "" && !strings.HasPrefix(said, "<") {
		what += ": " + said
	}
	return fmt.Errorf("no instance of the service at %s has answered (%d %s): try again, or look at its log",
		s.address, code, what)
}

// notFound returns the error for an answer with the code 404, whose text is said.
func (s *service) notFound(said string) error {
	if at := strings.Index(said, "no such job"); at >= 0 {
		return fmt.Errorf("%s; \"scattermap jobs --all\" lists the jobs of %s", said[at:], s.address)
	}
	return fmt.Errorf("%s has no jobs API (404): set the service's URL by --service or $SCATTERMAP_SERVICE", s.address)
}

// refusal returns the error for an answer whose code is not a success, with advice for the user.
// The argument sent is the token that the request had.
func (s *service) refusal(code int, text []byte, sent proof) error {
	refused := refusalOf(text)
	said := refused.Error()
	page := strings.HasPrefix(said, "<") // an answer in HTML is not the service's, but Cloud Run's
	of, _ := claims.Of(sent.token)
	if err := s.older(code, text); err != nil {
		return err
	}
	switch code {
	case http.StatusUnauthorized:
		if page {
			said = "says Cloud Run"
		}
		if base, err := s.base(); err == nil && sent.token == "" && onThisMachine(base) {
			return fmt.Errorf("the service at %s wants a token (401: %s), and commands send none to this machine: let "+
				"the service allow requests of its own machine (auth.Loopback in Go, AUTH=off in examples/cloudrun), "+
				"or set $SCATTERMAP_TOKEN", s.address, said)
		}
		what := "get one for the service's URL by \"scattermap login\", or set $SCATTERMAP_TOKEN"
		switch {
		case of.Expired(time.Now()):
			said, what = "it has expired", "get another one"
		case of.Audience == claims.Gcloud:
			said, _, _ = strings.Cut(said, ": ")
			what = "gcloud makes a person's token for gcloud, and not for this service's URL: impersonate a service " +
				"account that OPERATORS names (scattermap login " +
				s.address + " --impersonate ACCOUNT), or open the dashboard in a browser"
		}
		return fmt.Errorf("the service at %s refuses the token%s (401: %s); %s", s.address, sent.from, said, what)
	case http.StatusForbidden:
		who := "this account"
		if of.Email != "" {
			who = operator.Line(of.Email, 200)
		}
		if page {
			return fmt.Errorf("the service at %s does not let %s in (403, says Cloud Run): grant it the role "+
				"roles/run.invoker on the service", s.address, who)
		}
		return fmt.Errorf("the service at %s does not let %s in (403: %s): add it to OPERATORS of the "+
			"service", s.address, who, said)
	case http.StatusNotFound:
		return s.notFound(said)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return s.noInstance(code, said)
	case http.StatusInternalServerError:
		if !page && said != "" {
			return fmt.Errorf("the service at %s has failed: %s", s.address, said)
		}
	}
	if page || said == "" {
		return fmt.Errorf("%s is not the service: it answers %d %s", s.address, code,
			http.StatusText(code))
	}
	return refused
}
