package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/claims"
	"github.com/scattermap/scattermap/internal/operator"
)

// newLogin returns the command login. It stores how later commands get tokens for a service.
func newLogin() *cobra.Command {
	var s service
	var impersonate string
	c := &cobra.Command{
		Use: "login [URL]", Short: "Log in to a service with gcloud, and use it in later commands",
		Long: `Gets an identity token from gcloud, and sends it to the service. If the service accepts it, the
command stores the service's URL, the token and the account in a file that only you can read. Later
commands use this login, and get new tokens from gcloud.

If Cloud Run checks tokens (AUTH=iam), your own account needs the role roles/run.invoker. If the
service checks tokens (AUTH=on), use --impersonate with a service account that the service's variable
OPERATORS names. You need the role roles/iam.serviceAccountTokenCreator on this account. A job's
history then names this account, and not you.

After you switch gcloud to another account, log in again. Without a URL, the command logs in to the
current service again, and prints its URL.`,
		Example: "  scattermap login https://credit-123.europe-west1.run.app\n" +
			"  scattermap login https://credit-123.europe-west1.run.app --impersonate " +
			"credit-operators@PROJECT.iam.gserviceaccount.com",
	}
	c.Flags().StringVar(&impersonate, "impersonate", "",
		"get tokens of this service `account`, by its e-mail address, instead of your own")
	c.RunE = func(c *cobra.Command, args []string) error {
		all, err := readLogins()
		if err != nil {
			return err
		}
		switch {
		case len(args) > 1:
			return usageError(errors.New("login: name one service, by its URL"))
		case len(args) == 1:
			s.address = args[0]
		case all.Current == "":
			return usageError(errors.New("login: you are not logged in: name a service, as in scattermap login " +
				"https://credit-123.europe-west1.run.app"))
		default:
			s.address = all.Current
			if impersonate == "" {
				impersonate = all.Services[all.Current].way().Impersonate
			}
		}
		if impersonate != "" && (!strings.Contains(impersonate, "@") || strings.ContainsAny(impersonate, " ,")) {
			return usageError(fmt.Errorf("login: --impersonate is %q, it has to be the e-mail address of a service "+
				"account", impersonate))
		}
		base, err := s.base()
		if err != nil {
			return err
		}
		if os.Getenv("SCATTERMAP_TOKEN") != "" {
			return usageError(errors.New("login: $SCATTERMAP_TOKEN is set, and commands would send it: unset it first"))
		}
		s.way = &login{Impersonate: impersonate}
		var page map[string]any
		if err := s.call(c.Context(), http.MethodGet, "", nil, nil, &page); err != nil {
			return err
		}
		if _, ok := page["jobs"]; !ok {
			return fmt.Errorf("%s is not a service of scattermap: its answer lists no jobs", s.address)
		}
		// read again: another command may have changed the file while gcloud ran
		if all, err = readLogins(); err != nil {
			return err
		}
		all.Current = nameOf(base)
		all.Services[all.Current] = s.way
		if err := all.save(); err != nil {
			return err
		}
		if other := os.Getenv("SCATTERMAP_SERVICE"); other != "" && strings.TrimRight(other, "/") != all.Current {
			fmt.Fprintf(c.ErrOrStderr(), "$SCATTERMAP_SERVICE is set, and commands go to %s until you unset it.\n",
				other)
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), says(all.Current, s.token))
		return err
	}
	return c
}

// says returns the text that login prints: the service's address, the account of the token, and
// when the token expires.
func says(address, token string) string {
	if token == "" {
		return fmt.Sprintf("Commands go to %s, which is on this machine and takes no token.", address)
	}
	of, _ := claims.Of(token)
	text := "Logged in to " + address
	if of.Email != "" {
		text += " as " + operator.Line(of.Email, 200)
	}
	if of.Expires > 0 {
		text += ". The token is kept until " + of.Until().Format("15:04") + "; then gcloud makes another one"
	}
	return text + "."
}

// newLogout returns the command that deletes stored logins and their tokens.
func newLogout() *cobra.Command {
	return &cobra.Command{
		Use: "logout [URL]", Short: "Forget a service and its token, or all of them",
		Long: `Removes the stored login of the service at URL, or all logins without a URL. A token that
somebody has copied still works until it expires, within an hour.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(errors.New("logout: name one service, or none for all"))
			}
			if len(args) == 0 {
				path, err := loginsFile()
				if err == nil {
					err = os.Remove(path)
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("logout: %w", err)
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), "Logged out of all services.")
				return err
			}
			all, err := readLogins()
			if err != nil {
				return err
			}
			base, err := (&service{address: args[0]}).base()
			if err != nil {
				return err
			}
			name := nameOf(base)
			if all.Services[name] == nil {
				return fmt.Errorf("logout: you are not logged in to %s", name)
			}
			delete(all.Services, name)
			if all.Current == name {
				all.Current = ""
			}
			if err := all.save(); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "Logged out of "+name+".")
			return err
		},
	}
}

// way returns l, or an empty login if l is nil.
func (l *login) way() *login {
	if l == nil {
		return &login{}
	}
	return l
}

// nameOf returns the URL of a service in the form in which logins store it: without a slash at its
// end.
func nameOf(base *url.URL) string { return strings.TrimRight(base.String(), "/") }
