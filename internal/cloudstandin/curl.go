package cloudstandin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protojson"
)

// Curl has the flags of curl that the documentation may use. The value true means that the flag is
// followed by a value.
var Curl = map[string]bool{
	"--fail-with-body": false, "--fail": false, "--silent": false, "--show-error": false, "--location": false,
	"--request": true, "--header": true, "--data": true, "--output": true, "--max-time": true,
}

// short maps curl's short flags to the long ones.
var short = map[string]string{"-s": "--silent", "-S": "--show-error", "-f": "--fail", "-L": "--location",
	"-X": "--request", "-H": "--header", "-d": "--data", "-o": "--output", "-m": "--max-time"}

// ParseCurl parses the arguments of curl. It returns the values of each flag, by the flag's long
// name, and the URL.
func ParseCurl(args []string) (flags map[string][]string, url string, err error) {
	flags = make(map[string][]string)
	for i := 0; i < len(args); i++ {
		name := args[i]
		if long, ok := short[name]; ok {
			name = long
		}
		value, known := Curl[name]
		switch {
		case !strings.HasPrefix(name, "-") && url == "":
			url = name
		case !strings.HasPrefix(name, "-"):
			return nil, "", fmt.Errorf("curl: two URLs: %s and %s", url, name)
		case !known:
			return nil, "", fmt.Errorf("curl: option %s: is unknown\ncurl: try 'curl --help' for more "+
				"information", name)
		case value && i+1 == len(args):
			return nil, "", fmt.Errorf("curl: option %s: requires parameter", name)
		case value:
			i++
			flags[name] = append(flags[name], args[i])
		default:
			flags[name] = append(flags[name], "")
		}
	}
	if url == "" {
		return nil, "", errors.New("curl: (2) no URL specified")
	}
	return flags, url, nil
}

var commitURL = regexp.MustCompile(`^https://datastore\.googleapis\.com/v1/projects/([^/:]+):commit$`)

// curl runs a command line of curl: it sends a request to the Datastore or to a service.
func (c *Cloud) curl(ctx context.Context, cmd command) (reply, error) {
	flags, url, err := ParseCurl(cmd.Args)
	if err != nil {
		return reply{}, err
	}
	header := make(http.Header)
	for _, h := range flags["--header"] {
		name, value, ok := strings.Cut(h, ": ")
		if !ok {
			return reply{}, fmt.Errorf("curl: the header %q has no value", h)
		}
		header.Set(name, value)
	}
	method, data := http.MethodGet, strings.Join(flags["--data"], "&")
	if flags["--data"] != nil {
		method = http.MethodPost
	}
	if m := flags["--request"]; m != nil {
		method = m[0]
	}
	var code int
	var body string
	if m := commitURL.FindStringSubmatch(url); m != nil {
		code, body = c.restCommit(ctx, m[1], method, header, data)
		body = strings.TrimRight(body, "\n") + "\n" // Google's answers end with a line break
	} else if strings.HasSuffix(strings.Split(strings.TrimPrefix(url, "https://"), "/")[0], ".run.app") {
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(data))
		if err != nil {
			return reply{}, err
		}
		r.Header = header
		answer, err := c.front.RoundTrip(r)
		if err != nil {
			return reply{}, err
		}
		defer func() { _ = answer.Body.Close() }() // nothing was written, so no data is lost
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return reply{}, err
		}
		code, body = answer.StatusCode, string(text)
	} else {
		return reply{}, fmt.Errorf("curl: (6) Could not resolve host: %s", url)
	}
	var r reply
	if flags["--output"] == nil {
		r.Out = body
	}
	if code >= 400 && (flags["--fail-with-body"] != nil || flags["--fail"] != nil) {
		return r, fmt.Errorf("curl: (22) The requested URL returned error: %d\n%s", code, body)
	}
	return r, nil
}

// restCommit answers a request to the method commit of the Datastore's REST API.
func (c *Cloud) restCommit(ctx context.Context, project, method string, header http.Header, data string) (int,
	string) {
	if method != http.MethodPost {
		return http.StatusNotFound, "it has to be a POST"
	}
	if c.user == "" || header.Get("Authorization") != "Bearer access-token-of-"+c.user {
		return http.StatusUnauthorized, `{"error": {"code": 401, "status": "UNAUTHENTICATED"}}`
	}
	var r datastorepb.CommitRequest
	if err := protojson.Unmarshal([]byte(data), &r); err != nil {
		return http.StatusBadRequest, fmt.Sprintf(`{"error": {"code": 400, "message": %q}}`, err)
	}
	r.ProjectId = project
	for _, m := range r.Mutations {
		if e := m.GetUpsert(); e != nil && e.Key.PartitionId == nil {
			e.Key.PartitionId = &datastorepb.PartitionId{ProjectId: project}
		}
	}
	answer, err := c.commit(ctx, &r)
	if err != nil {
		return http.StatusForbidden, fmt.Sprintf(`{"error": {"code": 403, "message": %q}}`, err)
	}
	text, err := protojson.Marshal(answer)
	if err != nil {
		return http.StatusInternalServerError, err.Error()
	}
	return http.StatusOK, string(text)
}

// git runs a command line of git, which must clone scattermap. Instead of a clone, it makes a
// folder with links into the checkout.
func (c *Cloud) git(cmd command) (reply, error) {
	if len(cmd.Args) != 2 || cmd.Args[0] != "clone" || cmd.Args[1] != "https://github.com/scattermap/scattermap" {
		return reply{}, fmt.Errorf("git: the stand-in only clones https://github.com/scattermap/scattermap, not "+
			"%q", cmd.Args)
	}
	clone := filepath.Join(cmd.Folder, "scattermap")
	if err := os.Mkdir(clone, 0o700); err != nil {
		return reply{}, fmt.Errorf("fatal: destination path 'scattermap' already exists and is not an empty "+
			"directory: %w", err)
	}
	all, err := os.ReadDir(c.options.Checkout)
	if err != nil {
		return reply{}, err
	}
	for _, entry := range all {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if err := os.Symlink(filepath.Join(c.options.Checkout, entry.Name()), filepath.Join(clone,
			entry.Name())); err != nil {
			return reply{}, err
		}
	}
	return reply{Err: "Cloning into 'scattermap'...\n"}, nil
}

// golang runs a command line of go. "go mod tidy" would need a network, so it makes the module use
// the checkout of scattermap. "go install" installs to the folder of the simulated programs.
func (c *Cloud) golang(ctx context.Context, cmd command) (reply, error) {
	switch {
	case len(cmd.Args) == 2 && cmd.Args[0] == "install":
		return reply{}, c.program(ctx, cmd.Folder, cmd.Args[1], filepath.Join(c.Programs(),
			filepath.Base(cmd.Args[1])))
	case strings.Join(cmd.Args, " ") == "mod tidy":
		return c.tidy(cmd.Folder)
	}
	return reply{}, realGo(ctx, cmd.Folder, cmd.Args...)
}

// tidy changes the go.mod of a module, so that the module uses the checkout of scattermap. It adds
// all modules that the checkout requires.
func (c *Cloud) tidy(folder string) (reply, error) {
	source, err := os.ReadFile(filepath.Join(folder, "main.go"))
	if err != nil || !strings.Contains(string(source), `"github.com/scattermap/scattermap/`) {
		return reply{}, fmt.Errorf("go: warning: \"all\" matched no packages: no main.go imports scattermap: %w", err)
	}
	own, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return reply{}, errors.New("go: go.mod file not found in current directory or any parent directory; see " +
			"'go help modules'")
	}
	theirs, err := os.ReadFile(filepath.Join(c.options.Checkout, "go.mod"))
	if err != nil {
		return reply{}, err
	}
	sums, err := os.ReadFile(filepath.Join(c.options.Checkout, "go.sum"))
	if err != nil {
		return reply{}, err
	}
	_, requirements, _ := strings.Cut(string(theirs), "\nrequire ")
	text := string(own) + "\nrequire github.com/scattermap/scattermap v0.0.0\n\n" +
		"replace github.com/scattermap/scattermap => " + c.options.Checkout + "\n\nrequire " + requirements
	return reply{Err: "go: finding module for package github.com/scattermap/scattermap/mapper\n"}, errors.Join(
		os.WriteFile(filepath.Join(folder, "go.mod"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(folder, "go.sum"), sums, 0o600))
}
