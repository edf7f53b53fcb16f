package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/claims"
	"github.com/scattermap/scattermap/internal/forge"
)

const (
	person = "ann@example.com"
	robot  = "team@test.iam.gserviceaccount.com"
	remote = "https://credit.test" // a service that is not on this machine
)

// A gcloud is a program that tests run in place of gcloud. For each line of arguments that a test
// has set, it prints a token. It fails for any other line.
type gcloud struct {
	t   *testing.T
	dir string
}

// newGcloud creates the program, and makes it the only one on $PATH. Commands store logins in a
// folder of the test.
func newGcloud(t *testing.T) gcloud {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for gcloud is a shell script")
	}
	g := gcloud{t, t.TempDir()}
	script := "#!/bin/sh\necho \"$*\" >>" + g.dir + "/calls\n" +
		"[ -f \"" + g.dir +
		"/$*\" ] || { echo 'ERROR: (gcloud.auth.print-identity-token) no such account' >&2; exit 1; }\n" +
		"while read -r line; do echo \"$line\"; done <\"" + g.dir + "/$*\"\n"
	if err := os.WriteFile(filepath.Join(g.dir, "gcloud"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", g.dir)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // on macOS, logins are stored below $HOME
	t.Setenv("SCATTERMAP_SERVICE", "")
	t.Setenv("SCATTERMAP_TOKEN", "")
	return g
}

// prints makes the program print a token when it is called with a line of arguments.
func (g gcloud) prints(token string, arguments ...string) {
	g.t.Helper()
	path := filepath.Join(g.dir, strings.Join(append([]string{"auth print-identity-token"}, arguments...), " "))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
		os.WriteFile(path, []byte(token+"\n"), 0o600)); err != nil {
		g.t.Fatal(err) // the slashes of a URL in the arguments make folders
	}
}

// calls returns how often the program was called.
func (g gcloud) calls() int {
	text, err := os.ReadFile(filepath.Join(g.dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		g.t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// serveRemote lets the handler answer the test's requests to https://credit.test.
func serveRemote(t *testing.T, handler http.Handler) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	old := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = old })
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.ServerName = "example.com" // the name in httptest's certificate
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "credit.test:") {
			address = server.Listener.Addr().String()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	http.DefaultTransport = transport
}

// cloudRun returns a handler that checks tokens as Cloud Run does. It answers requests that it
// refuses with HTML pages of its own. It passes other requests on to next, without the signature of
// their token.
func cloudRun(invokers string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		c, ok := claims.Of(token)
		code := http.StatusOK
		switch {
		case !ok, c.Expired(time.Now()), c.Audience != claims.Gcloud && c.Audience != remote:
			code = http.StatusUnauthorized
		case !strings.Contains(invokers, c.Email):
			code = http.StatusForbidden
		}
		if code != http.StatusOK {
			http.Error(w, "\n<html><head>\n<title>"+http.StatusText(code)+"</title>\n</head></html>", code)
			return
		}
		r.Header.Set("Authorization", "Bearer "+token[:strings.LastIndex(token, ".")]+".SIGNATURE_REMOVED_BY_GOOGLE")
		next.ServeHTTP(w, r)
	})
}

// expect runs a command line, and checks its exit code and its output.
func expect(t *testing.T, line string, code int, want ...string) {
	t.Helper()
	out, errs, got := command(t, "", words(line)...)
	t.Logf("$ scattermap %s\n%s%s", line, out, errs)
	for _, w := range want {
		if got != code || !strings.Contains(out+errs, w) {
			t.Errorf("%s: exit code %d, want %d, and %q in\n%s%s", line, got, code, w, out, errs)
		}
	}
}

// TestLoginPerson logs in people through Cloud Run's own check, with gcloud's tokens. The history
// names them.
func TestLoginPerson(t *testing.T) {
	g, google := newGcloud(t), forge.OIDC(t)
	serveRemote(t, cloudRun(person, newAPI(t, 20, auth.Claimed)))
	expect(t, "login", exitUsage, "you are not logged in")
	expect(t, "jobs", exitUsage, "scattermap login URL")
	expect(t, "login "+remote, exitError, "gcloud auth login", "no such account")
	g.prints(google.Token("eve@example.com", claims.Gcloud, nil))
	expect(t, "login "+remote, exitError, "eve@example.com", "roles/run.invoker")
	g.prints(google.Token(person, claims.Gcloud, nil))
	expect(t, "login "+remote+"/", 0, "Logged in to "+remote+" as "+person+". The token is kept until ")
	before := g.calls()
	expect(t, "start add-credit --kind Account --id spring --params {\"Amount\":1} -w", 0, "spring: succeeded, 20")
	expect(t, "history spring", 0, person)
	if n := g.calls() - before; n != 0 {
		t.Errorf("gcloud was asked %d times for a token that is kept", n)
	}
	path, err := loginsFile()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file of the tokens: %v, %v", info.Mode(), err)
	}

	// The command does not send a stored token that has expired. It does not send a token again
	// that the service has refused.
	for _, c := range []struct{ audience, age string }{{claims.Gcloud, "expired"}, {"https://other.test", "fresh"}} {
		kept, err := readLogins()
		if err != nil {
			t.Fatal(err)
		}
		changes := forge.Claims{}
		if c.age == "expired" {
			changes["exp"] = time.Now().Unix() - 1
		}
		kept.Services[remote].Token = google.Token(person, c.audience, changes)
		if err := kept.save(); err != nil {
			t.Fatal(err)
		}
		before := g.calls()
		expect(t, "jobs --all", 0, "spring")
		expect(t, "jobs --all", 0, "spring")
		if n := g.calls() - before; n != 1 {
			t.Errorf("%v: gcloud was asked %d times, want 1", c, n)
		}
	}
	expect(t, "login", 0, "as "+person)
	t.Setenv("SCATTERMAP_TOKEN", google.Token(person, "https://other.test", nil))
	expect(t, "jobs", exitError, "refuses the token in $SCATTERMAP_TOKEN (401: says Cloud Run)")
	t.Setenv("SCATTERMAP_TOKEN", "")
	expect(t, "logout https://none.test", exitError, "not logged in to https://none.test")
	expect(t, "logout "+remote, 0, "Logged out of "+remote)
	expect(t, "jobs", exitUsage, "scattermap login URL")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, "jobs", exitError, "logins.json", "scattermap logout")
	expect(t, "logout", 0, "Logged out of all services")
	expect(t, "logout", 0, "Logged out of all services")
}

// TestLoginAccount logs in as a service account, to a service that verifies tokens itself. It
// refuses a person's own token, and the error names the remedy.
func TestLoginAccount(t *testing.T) {
	g, google := newGcloud(t), forge.OIDC(t)
	v, err := auth.NewOIDC(remote, []string{robot}, google.Keys())
	if err != nil {
		t.Fatal(err)
	}
	serveRemote(t, newAPI(t, 20, v.Authenticate))
	g.prints(google.Token(person, claims.Gcloud, nil))
	expect(t, "login "+remote, exitError, "refuses the token of \"gcloud auth print-identity-token\"",
		"scattermap login "+remote+" --impersonate ACCOUNT")
	expect(t, "jobs", exitUsage, "scattermap login URL") // the service has refused this login, so it was not stored
	expect(t, "login "+remote+" --impersonate team", exitUsage, `"team"`)
	expect(t, "login "+remote+" --impersonate "+robot, exitError, "roles/iam.serviceAccountTokenCreator on "+robot)
	impersonating := []string{"--impersonate-service-account=" + robot, "--audiences=" + remote, "--include-email"}
	g.prints(google.Token(robot, remote, nil), impersonating...)
	expect(t, "login "+remote+" --impersonate "+robot, 0, "as "+robot)
	expect(t, "start add-credit --kind Account --id spring --params {\"Amount\":1} -w", 0, "spring: succeeded, 20")
	expect(t, "history spring", 0, robot)
	expect(t, "login", 0, "as "+robot) // login without a URL tries the stored login again

	// gcloud's own account is a pipeline's service account.
	g.prints(google.Token(robot, claims.Gcloud, nil))
	g.prints(google.Token(robot, remote, nil), "--audiences="+remote)
	expect(t, "logout", 0, "")
	expect(t, "login "+remote, 0, "as "+robot)

	for name, c := range map[string]struct{ token, want string }{
		"expired": {google.Token(robot, remote, forge.Claims{"exp": time.Now().Unix() - 1}),
			"it has expired); get another one"},
		"another audience": {google.Token(robot, "https://other.test", nil),
			"for another audience, not for the URL of this service"},
		"an access token": {"ya29.a0", "this is not an identity token"},
		"another account": {google.Token("eve@example.com", remote, nil), "does not let eve@example.com in"},
	} {
		t.Setenv("SCATTERMAP_TOKEN", c.token)
		if out, errs, code := command(t, "", "jobs"); code != exitError || !strings.Contains(errs, c.want) ||
			strings.Contains(out+errs, c.token) {
			t.Errorf("%s: exit code %d, %s%s", name, code, out, errs)
		}
	}
	t.Setenv("SCATTERMAP_TOKEN", "")
	t.Setenv("PATH", t.TempDir())
	expect(t, "logout", 0, "")
	expect(t, "login "+remote, exitError, "https://cloud.google.com/sdk/docs/install")
}

// TestLoginBeside changes the stored logins while another command waits for gcloud: it logs out,
// and logs in to another service. When the other command stores its token, it must keep these
// changes.
func TestLoginBeside(t *testing.T) {
	g, google := newGcloud(t), forge.OIDC(t)
	serveRemote(t, cloudRun(person, newAPI(t, 1, auth.Claimed)))
	g.prints(google.Token(person, claims.Gcloud, nil))
	base, err := url.Parse(remote)
	if err != nil {
		t.Fatal(err)
	}
	for name, after := range map[string]*logins{
		"logged out":  {Services: map[string]*login{}},
		"elsewhere":   {Current: "https://b.test", Services: map[string]*login{"https://b.test": {}}},
		"another way": {Current: remote, Services: map[string]*login{remote: {Impersonate: robot}}},
	} {
		if err := after.save(); err != nil {
			t.Fatal(err)
		}
		keep(base, &login{Token: "late"})
		is, err := readLogins()
		if diff := cmp.Diff(after, is); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

// TestLoginElsewhere logs in to addresses without a service: a page of Identity-Aware Proxy,
// another web page, and a port on this machine.
func TestLoginElsewhere(t *testing.T) {
	g, google := newGcloud(t), forge.OIDC(t)
	g.prints(google.Token(person, claims.Gcloud, nil))
	proxied := false
	serveRemote(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if proxied {
			w.Header().Set("X-Goog-IAP-Generated-Response", "true")
			http.Redirect(w, r, "https://accounts.google.com/o/oauth2/v2/auth", http.StatusFound)
			return
		}
		_ = json.NewEncoder(w).Encode("hello") // an error would show in the client
	}))
	expect(t, "login "+remote, exitError, "is not a service of scattermap")
	proxied = true
	expect(t, "login "+remote, exitError, "Identity-Aware Proxy protects "+remote, remote+"/dashboard/")
	expect(t, "login http://credit.test", exitUsage, "use https")
	t.Setenv("SCATTERMAP_TOKEN", "secret")
	expect(t, "jobs --service http://credit.test", exitUsage, "use https")
	expect(t, "login "+remote, exitUsage, "unset it first")
	t.Setenv("SCATTERMAP_TOKEN", "")
	expect(t, "login credit", exitUsage, "http or https URL")
	local := httptest.NewServer(newAPI(t, 1, func(*http.Request) (string, error) { return person, nil }))
	t.Cleanup(local.Close)
	expect(t, "login "+local.URL, 0, "takes no token")
	expect(t, "jobs", 0, "")
}
