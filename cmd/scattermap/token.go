package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/claims"
	"github.com/scattermap/scattermap/internal/operator"
)

// A proof is the token that a request carries, and where it comes from.
type proof struct {
	token string
	from  string // where the token comes from, in words for an error: they come after "the token"
	kept  bool   // whether it was stored by an earlier call or command, so that the service may refuse it by now
}

// onThisMachine reports whether a service is on this machine, where it needs no token.
func onThisMachine(base *url.URL) bool {
	ip := net.ParseIP(base.Hostname())
	return base.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// prove returns the token for a request to a service, or no token if the service is on this
// machine. If anew is set, it gets a new token even if one is stored.
func (s *service) prove(ctx context.Context, base *url.URL, anew bool) (proof, error) {
	token := strings.TrimSpace(os.Getenv("SCATTERMAP_TOKEN"))
	switch {
	case base.Scheme != "https" && !onThisMachine(base):
		return proof{},
			usageError(fmt.Errorf("the service is %q, and tokens go to other machines over https only: use https",
				s.address))
	case token != "":
		return proof{token: token, from: " in $SCATTERMAP_TOKEN"}, nil
	case onThisMachine(base):
		return proof{}, nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !anew && s.token != "" {
		return proof{s.token, s.from, true}, nil
	}
	command, kept := strings.Fields(s.tokenCommand), false
	if len(command) == 0 {
		all, err := readLogins()
		if err != nil {
			return proof{}, err
		}
		way := s.way // the login that the command login tries
		if way == nil {
			way = all.Services[nameOf(base)].way()
			kept = all.Services[nameOf(base)] == way
		}
		if of, _ := claims.Of(way.Token); kept && !anew && time.Until(of.Until()) > early {
			s.token, s.from = way.Token, " that \"scattermap login\" has kept"
			return proof{s.token, s.from, true}, nil
		}
		token, from, err := gcloudToken(ctx, base, way.Impersonate)
		if err != nil {
			return proof{}, err
		}
		s.token, s.from, way.Token = token, from, token
		if kept {
			keep(base, way)
		}
		return proof{token: token, from: from}, nil
	}
	token, err := printed(ctx, command)
	if err != nil {
		return proof{},
			fmt.Errorf("no token: %w; set $SCATTERMAP_TOKEN to an identity token, or --token-command to a "+
				"command that prints one", err)
	}
	s.token, s.from = token, " that --token-command prints"
	return proof{token: token, from: s.from}, nil
}

// keep stores a login's new token. It first reads the file of logins again, because another command
// may have logged in or out while gcloud made the token. If the token can't be stored, the next
// command asks gcloud again.
func keep(base *url.URL, way *login) {
	all, err := readLogins()
	if err != nil {
		return
	}
	if now := all.Services[nameOf(base)]; now != nil && now.Impersonate == way.Impersonate {
		now.Token = way.Token
		_ = all.save()
	}
}

// gcloudToken gets a token for a service from gcloud. If impersonate is not empty, the token is for
// that service account; otherwise it is for gcloud's own account. The result from says in words
// where the token comes from.
func gcloudToken(ctx context.Context, base *url.URL, impersonate string) (token, from string, err error) {
	// without a path, as in the URL of a Cloud Run service
	audience := (&url.URL{Scheme: base.Scheme, Host: base.Host}).String()
	command := []string{"gcloud", "auth", "print-identity-token"}
	if impersonate != "" {
		command = append(command, "--impersonate-service-account="+impersonate, "--audiences="+audience,
			"--include-email")
	}
	token, err = printed(ctx, command)
	if of, _ := claims.Of(token); err == nil && impersonate == "" && of.Audience != audience &&
		strings.HasSuffix(of.Email, "gserviceaccount.com") {
		// gcloud accepts an audience only for service accounts.
		command = append(command, "--audiences="+audience)
		token, err = printed(ctx, command)
	}
	if err != nil {
		hint := "\"gcloud auth login\" logs you in"
		switch {
		case errors.Is(err, exec.ErrNotFound):
			hint = "install gcloud (https://cloud.google.com/sdk/docs/install)"
		case impersonate != "":
			hint = "you need the role roles/iam.serviceAccountTokenCreator on " + impersonate +
				", and the API iamcredentials.googleapis.com"
		}
		return "", "", fmt.Errorf("no token: %w; %s, or set $SCATTERMAP_TOKEN to an identity token", err, hint)
	}
	return token, " of \"" + strings.Join(command, " ") + "\"", nil
}

// printed runs a command, and returns what it prints.
func printed(ctx context.Context, command []string) (string, error) {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) && len(failed.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, operator.Line(strings.TrimSpace(string(failed.Stderr)), 500))
		}
		return "", fmt.Errorf("%q: %w", strings.Join(command, " "), err)
	}
	token := strings.TrimSpace(string(out))
	if token == "" || strings.ContainsAny(token, " \r\n") {
		return "", fmt.Errorf("%q prints no token", strings.Join(command, " "))
	}
	return token, nil
}
