package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/tasks"
)

// TestMain runs the tests. In a process that is called scattermap it runs the command in place of
// the tests: see program.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "scattermap" {
		main()
		return
	}
	lookEvery, topEvery = lookEvery/10, topEvery/10
	os.Exit(m.Run())
}

// program returns the path of the command scattermap. It is a link to the test's own binary:
// TestMain sees the link's name, and runs the command.
func program(t *testing.T) string {
	t.Helper()
	tests, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "scattermap")
	if err := os.Symlink(tests, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

// A server is a process that runs "scattermap emulator".
type server struct {
	process *exec.Cmd
	env     map[string]string // the variables that the command tells users to export
}

func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{process: exec.Command(program(t),
		append([]string{"emulator", "--datastore", "127.0.0.1:0", "--tasks", "127.0.0.1:0"}, args...)...),
		env: make(map[string]string)}
	s.process.Stderr = t.Output()
	stdout, err := s.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.process.Process.Kill() })
	lines, said := bufio.NewScanner(stdout), 4
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--dashboard") }) {
		said += 2
	}
	for len(s.env) < said && lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		if !ok {
			t.Fatalf("it printed %q", lines.Text())
		}
		s.env[name] = value
	}
	return s
}

// TestServer starts the emulator's command, and connects clients by the environment variables that
// it prints. They find the emulator and its queue. SIGTERM ends the process without an error.
func TestServer(t *testing.T) {
	s := startServer(t)
	for name, value := range s.env {
		t.Setenv(name, value)
	}
	client, err := datastore.NewClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := datastore.NameKey("K", "a", nil)
	if _, err := client.Put(t.Context(), key, &datastore.PropertyList{{Name: "n", Value: int64(5)}}); err != nil {
		t.Fatal(err)
	}
	var got datastore.PropertyList
	if err := client.Get(t.Context(), key, &got); err != nil || got[0].Value != int64(5) {
		t.Errorf("%v, %v", got, err)
	}
	queues, err := tasks.NewClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer queues.Close()
	q, err := queues.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: os.Getenv("TASKS_QUEUE")})
	if err != nil || q.GetRateLimits().GetMaxConcurrentDispatches() != 180 ||
		q.GetRetryConfig().GetMaxAttempts() != -1 {
		t.Errorf("of the queue that it says exists: %v", err)
	}
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.process.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestNode runs the official Node client against the command, if Node and the client are installed.
// NODE_DATASTORE names a folder with the client's node_modules; otherwise npm fetches the client.
func TestNode(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves the Node client out")
	}
	nightly.Leave(t)
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("left out: Node is not installed")
	}
	modules := nodeModules(t)
	script, err := os.ReadFile("testdata/client.js")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(modules, "client.js")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t)
	cmd := exec.CommandContext(t.Context(), node, file)
	cmd.Dir = modules
	cmd.Env = os.Environ()
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all as expected") {
		t.Errorf("%v\n%s", err, out)
	}
}

// nodeModules returns a folder in which Node finds the client.
func nodeModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if have := os.Getenv("NODE_DATASTORE"); have != "" {
		if err := os.Symlink(filepath.Join(have, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("left out: npm, which fetches the Node client, is not installed")
	}
	cmd := exec.CommandContext(t.Context(), npm, "install", "--no-audit", "--no-fund", "--ignore-scripts",
		"@google-cloud/datastore@10")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("left out: npm can't fetch the Node client: %v: %.200s", err,
			bytes.ReplaceAll(out, []byte("\n"), []byte(" ")))
	}
	return dir
}

func TestBadCommands(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for args, c := range map[string]struct {
		want string
		code int
	}{
		"emulator --tasks 127.0.0.1:0 --datastore " + taken.Addr().String(): {
			"or choose another address by --datastore, --tasks or --keys", exitError},
		"dance":                        {`"scattermap" (scattermap --help lists the commands)`, exitUsage},
		"verfy":                        {"verify", exitUsage}, // expects the hint "did you mean this?"
		"emulator more":                {"it takes no argument", exitUsage},
		"emulator --datastore nowhere": {"--datastore is \"nowhere\", it has to be HOST:PORT", exitUsage},
		"emulator --tasks 127.0.0.1":   {"--tasks", exitUsage},
		"emulator --scatter -5":        {"--scatter is -5, it has to be in [1, 65536]", exitUsage},
		"emulator --scatter 0":         {"--scatter", exitUsage},
		"emulator --scatter 65537":     {"--scatter", exitUsage},
		"emulator --indexes /none":     {"--indexes", exitError},
		"emulator --unknown":           {"--unknown", exitUsage},
		"emulator --version-memory -1": {"--version-memory", exitUsage},
		"emulator --datastore 127.0.0.1:0 --tasks 127.0.0.1:0 --queue mapper": {"it has to be " +
			"projects/PROJECT/locations/LOCATION/queues/QUEUE", exitError},
		"emulator --datastore 192.0.2.1:1 --tasks 127.0.0.1:0": {"Datastore", exitError},
	} {
		if err := run(t.Context(), strings.Fields(args), nil, io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), c.want) || codeOf(err) != c.code {
			t.Errorf("%q: error %v, want one with %q, and the code %d", args, err, c.want, c.code)
		}
	}
	for _, args := range []string{"", "help", "emulator --help", "help emulator"} {
		var out strings.Builder
		if err := run(t.Context(), strings.Fields(args), nil, &out, io.Discard); err != nil ||
			!strings.Contains(out.String(), "Usage") {
			t.Errorf("%q: %v\n%s", args, err, out.String())
		}
	}
}

// TestQueueFlags starts the emulator with several queues. The environment variables that it prints
// name the first queue.
func TestQueueFlags(t *testing.T) {
	const first, second = "projects/p/locations/l/queues/a", "projects/q/locations/l/queues/b"
	s := startServer(t, "--queue", first, "--queue", second, "--queue", first, "--version-memory", "0")
	if got := s.env["TASKS_QUEUE"]; got != first {
		t.Errorf("TASKS_QUEUE is %q, want %q", got, first)
	}
	for _, name := range []string{first, second} {
		resp, err := http.Get("http://" + s.env["CLOUD_TASKS_EMULATOR_HOST"] + "/v2/" + name)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// TestQueueNamesAreReused checks that a queue can be created again after it was deleted, unless a
// flag forbids that. The help describes the flag.
func TestQueueNamesAreReused(t *testing.T) {
	for _, keep := range []bool{true, false} {
		o := emulator.Options{DatastoreAddr: ":0", TasksAddr: ":0", KeysAddr: ":0"}
		if err := complete(&o, "", keep); err != nil || o.ReuseQueueNames == keep {
			t.Errorf("%v: %+v, %v", keep, o, err)
		}
	}
	var help strings.Builder
	if err := run(t.Context(), []string{"emulator", "--help"}, nil, &help, io.Discard); err != nil ||
		!strings.Contains(help.String(), "72 hours") {
		t.Errorf("%v: the help does not say how long the name of a deleted queue is taken:\n%s", err, help.String())
	}
}

// TestLoopbackUnlessTold checks that the command listens on the loopback address unless a flag
// names another one.
func TestLoopbackUnlessTold(t *testing.T) {
	o := emulator.Options{DatastoreAddr: ":0", TasksAddr: "[::1]:0", KeysAddr: "127.0.0.1:0"}
	if err := complete(&o, "", false); err != nil || o.DatastoreAddr != "127.0.0.1:0" || o.TasksAddr != "[::1]:0" ||
		o.KeysAddr != "127.0.0.1:0" {
		t.Errorf("%+v, %v", o, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var warnings strings.Builder
	if err := run(ctx, strings.Fields("emulator --datastore 0.0.0.0:0 --tasks :0"), nil, io.Discard,
		&warnings); err != nil {
		t.Fatal(err)
	}
	if strings.Count(warnings.String(), "other machines can reach") != 1 {
		t.Errorf("warnings %q, want one", warnings.String())
	}
}

// TestDashboard starts the emulator with the dashboard, and starts a job that counts entities, by
// the dashboard's form. The dashboard refuses requests to another host name, and the command
// refuses to serve it at an address that other machines can reach.
func TestDashboard(t *testing.T) {
	s := startServer(t, "--dashboard=127.0.0.1:0")
	for name, value := range s.env {
		t.Setenv(name, value)
	}
	client, err := datastore.NewClient(t.Context(), s.env["DATASTORE_PROJECT_ID"])
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), datastore.NameKey("K", "a", nil), &datastore.PropertyList{}); err != nil {
		t.Fatal(err)
	}
	pages := s.env["SCATTERMAP_DASHBOARD"]
	send := func(method, path, host string, form url.Values) (code int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, pages+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Accept", "application/json")
		if host != "" {
			r.Host = host
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, text := send("POST", "start", "", url.Values{"mapper": {"count"}, "kind": {"K"}, "id": {"counted"},
		"do": {"start"}}); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for range 100 {
		if _, text := send("GET", "job?id=counted", "", nil); strings.Contains(text, `"entities":1`) &&
			strings.Contains(text, `"succeeded"`) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if code, text := send("GET", "job?id=counted", "", nil); code != http.StatusOK ||
		!strings.Contains(text, `"counters":{"entities":1}`) {
		t.Errorf("%d %s", code, text)
	}
	if code, _ := send("GET", "", "evil.example", nil); code != http.StatusForbidden {
		t.Errorf("by another name: %d", code)
	}
	for _, addr := range []string{"0.0.0.0:0", "nowhere", "10.0.0.1:80"} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"emulator", "--datastore", "127.0.0.1:0", "--tasks", "127.0.0.1:0",
			"--dashboard=" + addr}, nil, &out, &out)
		if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "--dashboard") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
