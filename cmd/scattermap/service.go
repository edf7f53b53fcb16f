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
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
)

// A service is where the jobs are, and who asks.
type service struct {
	address      string
	tokenCommand string
	reason       string

	token string

	straight straight // in place of a service, if its queue is named
}

const defaultTokenCommand = "gcloud auth print-identity-token"

// define defines the flags of a service.
func (s *service) define(flags *pflag.FlagSet) {
	flags.StringVar(&s.address, "service", os.Getenv("SCATTERMAP_SERVICE"), "the `URL` of the service, with the path above /jobs if there is one; $SCATTERMAP_SERVICE by default")
	s.straight.define(flags)
	flags.StringVar(&s.tokenCommand, "token-command", defaultTokenCommand, "the `command` that prints an identity token, if $SCATTERMAP_TOKEN is empty; not used for a service on this machine")
}

// defineReason defines the flag of commands that change something.
func (s *service) defineReason(flags *pflag.FlagSet) {
	flags.StringVar(&s.reason, "reason", "", "why, for the job's history and the log")
}

// callTime is how long a request may take.
const callTime = time.Minute

// call makes a request, with a body unless that is nil, and decodes the answer into v, unless that is nil.
func (s *service) call(ctx context.Context, method, path string, parameters url.Values, body, v any) error {
	if err := checkPath(path); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	if method == http.MethodPost && s.reason != "" {
		if parameters == nil {
			parameters = make(url.Values)
		}
		parameters.Set("reason", s.reason)
	}
	if s.straight.queue != "" {
		code, text, err := s.straight.call(ctx, method, path, parameters, content)
		switch {
		case err != nil:
			return err
		case code == http.StatusInternalServerError:
			return fmt.Errorf("%s, %v", operator.Line(string(text), 1000), &s.straight.db)
		case code != http.StatusOK:
			return refusalOf(text)
		case v == nil:
			return nil
		}
		return json.Unmarshal(text, v)
	}
	base, err := s.base()
	if err != nil {
		return err
	}
	if err := s.authenticate(ctx, base); err != nil {
		return err
	}
	to := base.JoinPath("jobs", path)
	to.RawQuery = parameters.Encode()
	r, err := http.NewRequestWithContext(ctx, method, to.String(), content)
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // its text has the URL, which follows
			err = failed.Err
		}
		return fmt.Errorf("the service at %s does not answer: %w; --service or $SCATTERMAP_SERVICE says where it is", s.address, err)
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("the answer of %s broke off: %w", s.address, err)
	}
	if answer.StatusCode != http.StatusOK {
		return s.refusal(answer.StatusCode, text)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("what answers at %s is not a service of scattermap: %w", to.Redacted(), err)
	}
	return nil
}

// checkPath returns an error for a path below the list of jobs that is another one as a URL.
func checkPath(path string) error {
	if path == "" {
		return nil // the list itself
	}
	for segment := range strings.SplitSeq(path, "/") {
		if !names.JobID(segment) { // what is done to a job has such a name, too
			return usageError(fmt.Errorf("%.110q is no ID of a job, which is 1 to 100 letters, digits, '-' and '_', and not __x__",
				segment))
		}
	}
	return nil
}

// base returns the URL of the service.
func (s *service) base() (*url.URL, error) {
	if s.address == "" {
		return nil, usageError(errors.New("no service: --service or $SCATTERMAP_SERVICE says where it is, such as https://credit-123.europe-west1.run.app; or --straight names a queue, to work on the database itself"))
	}
	u, err := url.Parse(s.address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return nil, usageError(fmt.Errorf("the service is %q, it has to be an http or https URL", s.address))
	}
	return u, nil
}

// authenticate gets a token, unless there is one, or the service is on this machine.
func (s *service) authenticate(ctx context.Context, base *url.URL) error {
	if s.token == "" {
		s.token = strings.TrimSpace(os.Getenv("SCATTERMAP_TOKEN"))
	}
	local := base.Hostname() == "localhost"
	if ip := net.ParseIP(base.Hostname()); ip != nil {
		local = ip.IsLoopback()
	}
	if s.token != "" || local {
		return nil
	}
	if base.Scheme != "https" {
		return usageError(fmt.Errorf("the service is %q, and a token is not sent over http to another machine: use https", s.address))
	}
	words := strings.Fields(s.tokenCommand)
	if len(words) == 0 {
		return usageError(errors.New("no token: set $SCATTERMAP_TOKEN to an identity token, or --token-command to what prints one"))
	}
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).Output()
	if err != nil {
		return fmt.Errorf("no token: %q: %w; set $SCATTERMAP_TOKEN to an identity token, or --token-command to what prints one", s.tokenCommand, err)
	}
	s.token = strings.TrimSpace(string(out))
	return nil
}

// refusalOf returns what an answer that is no success says.
func refusalOf(text []byte) error {
	var answer struct {
		Error string `json:"error"`
	}
	said := strings.TrimSpace(string(text))
	if json.Unmarshal(text, &answer) == nil && answer.Error != "" {
		said = answer.Error
	}
	return errors.New(operator.Line(said, 1000))
}

// refusal returns what an answer that is no success says, and what to do.
func (s *service) refusal(code int, text []byte) error {
	said := refusalOf(text).Error()
	switch code {
	case http.StatusUnauthorized:
		return fmt.Errorf("the service at %s refuses the token (401: %s): it has to be an identity token for its URL, in $SCATTERMAP_TOKEN or printed by --token-command", s.address, said)
	case http.StatusForbidden:
		return fmt.Errorf("the service at %s does not let this account in (403: %s): OPERATORS of the service lists those who may", s.address, said)
	case http.StatusNotFound:
		if strings.Contains(said, "no such job") {
			return fmt.Errorf("%s; \"scattermap jobs --all\" lists those of %s", said, s.address)
		}
		return fmt.Errorf("there are no jobs at %s (404): --service or $SCATTERMAP_SERVICE says where the service is", s.address)
	case http.StatusInternalServerError:
		return fmt.Errorf("the service at %s has failed: %s", s.address, said)
	}
	return errors.New(said)
}
