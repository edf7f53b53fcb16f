package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/nightly"
)

// The module with the Go client's tests, and a module that these tests use.
const (
	clientModule  = "cloud.google.com/go/datastore"
	supportModule = "cloud.google.com/go"
)

// goClientDiffers has the integration tests of the Go client that fail, for each Datastore, with
// the reasons. The test fails if a listed test passes.
var goClientDiffers = map[string]map[string]string{
	"embedded": {"TestIntegration_DetectProjectID": needsCredentials},
	"classic": {
		"TestIntegration_DetectProjectID":                 needsCredentials,
		"TestIntegration_AggregationQueries":              noAggregations,
		"TestIntegration_AggregationQueriesInTransaction": noAggregations,
		"TestIntegration_BeginLater":                      noAggregations,
		"TestIntegration_RunAggregationQueryWithOptions":  noAggregations,
		"TestIntegration_FilterEntity":                    "OR is newer than the classic emulator",
		"TestIntegration_Filters": "IN, NOT_IN and NOT_EQUAL are newer " +
			"than the classic emulator",
		"TestIntegration_GetAllWithOptions":                                 unexplained.why,
		"TestIntegration_RunWithOptions":                                    unexplained.why,
		"TestIntegration_Transforms/Mutate":                                 ignoresTransforms,
		"TestIntegration_Transforms/PropertyTransforms":                     ignoresTransforms,
		"TestIntegration_Transforms/Transaction":                            ignoresTransforms,
		"TestIntegration_UpsertWithPropertyMask/EmptyMask_TransformOnly":    ignoresMasks,
		"TestIntegration_UpsertWithPropertyMask/SpecificMask_PartialUpdate": ignoresMasks,
	},
	"firestore": {
		"TestIntegration_DetectProjectID": needsCredentials,
		"TestIntegration_AggregationQueries": "the Firestore emulator needs no index, so that none is " +
			"missing",
		"TestIntegration_BeginLater":          commitsNoReads,
		"TestIntegration_ReadOnlyTransaction": commitsNoReads,
		"TestIntegration_BeginLaterPerf": "in the Firestore emulator a transaction that a lookup " +
			"begins waits for its own lock, and aborts",
		"TestIntegration_GetAllWithOptions":              unexplained.why,
		"TestIntegration_RunWithOptions":                 unexplained.why,
		"TestIntegration_RunAggregationQueryWithOptions": unexplained.why,
		"TestIntegration_LargeQuery/cursorTest_7":        skipsBackwards,
		"TestIntegration_LargeQuery/cursorTest_10":       skipsBackwards,
	},
}

const (
	needsCredentials = "it needs Google's credentials, and calls no Datastore"
	commitsNoReads   = "the Firestore emulator refuses the commit of a read-only transaction"
	skipsBackwards   = "the cursor that the Firestore emulator returns behind results that an offset skipped is the " +
		"one before them"
)

// TestGoClient runs the integration tests of the official Go client against the embedded Datastore
// and both of Google's emulators. On the embedded one, they run a second time, in a database with a
// name. The tests are in the module cache.
//
// The client's module, and a module that its tests use, are copied and changed in three ways. The
// function newClient connects to an emulator. A test that fails is repeated at once. Files that
// need a tracing module are left out, because this repository does not require that module; none is
// about Datastore.
func TestGoClient(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out what builds another module")
	}
	nightly.Leave(t)
	binary, module := buildGoClient(t)
	yaml, err := os.ReadFile(filepath.Join(module, "testdata", "index.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, product := range products {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			addr, databases := "", []string(nil)
			switch product {
			case "embedded":
				local := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", Indexes: yaml})
				addr, databases = local.DatastoreAddr(), []string{"GCLOUD_TESTS_GOLANG_DATASTORE_DATABASES=another"}
			case "classic":
				addr = googletest.Addr(t, google.Classic)
			case "firestore":
				addr = googletest.Addr(t, google.Firestore)
			}
			ran := runGoClient(t, binary, module, append(databases, "DATASTORE_EMULATOR_HOST="+addr))
			if len(ran) < 30 { // version 1.27.1 has 37
				t.Fatalf("only %d tests of the client ran", len(ran))
			}
			differs := goClientDiffers[product]
			for _, name := range slices.Sorted(maps.Keys(ran)) {
				t.Run(name, func(t *testing.T) {
					switch why, passed := differs[name], ran[name].passed(); {
					case passed && why != "":
						t.Errorf("passes, and is listed as one that does not: %s", why)
					case !passed && why == "":
						t.Errorf("the client's test %s:\n%s", ran[name].action, ran[name].output.String())
					case !passed:
						t.Skipf("left out: %s", why)
					case ran[name].runs != 1+len(databases):
						t.Errorf("ran %d times, want once in each of %d databases", ran[name].runs, 1+len(databases))
					}
				})
			}
			for name := range differs {
				if ran[name] == nil {
					t.Errorf("%s is listed, and no test of the client", name)
				}
			}
		})
	}
}

// A clientTest is the result of one test or subtest of the client.
type clientTest struct {
	runs   int    // the number of runs: one for each database
	action string // "pass", "fail" or "skip"
	output bytes.Buffer
}

func (c *clientTest) passed() bool { return c.action == "pass" }

// runGoClient runs the client's tests. It returns results by name, for tests and subtests that have
// no subtests themselves. A test that runs more than once gets its worst result.
func runGoClient(t *testing.T, binary, dir string, env []string) map[string]*clientTest {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json", binary, "-test.v=test2json",
		"-test.run=^TestIntegration_", "-test.timeout=10m")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GCLOUD_TESTS_GOLANG_PROJECT_ID="+googletest.Project(),
		"GOOGLE_APPLICATION_CREDENTIALS=", "GCLOUD_TESTS_GOLANG_KEY=")
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ran := make(map[string]*clientTest)
	var rest bytes.Buffer // output that does not belong to a test
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil || event.Test == "" {
			rest.WriteString(event.Output)
			continue
		}
		c := ran[event.Test]
		if c == nil {
			c = &clientTest{action: "did not end"}
			ran[event.Test] = c
		}
		switch event.Action {
		case "run":
			c.runs++
		case "output":
			c.output.WriteString(event.Output)
		case "pass":
			if c.action == "did not end" {
				c.action = "pass"
			}
		case "fail", "skip":
			c.action = event.Action
		}
	}
	if err := cmd.Wait(); err != nil {
		if exit := new(exec.ExitError); !errors.As(err, &exit) || len(ran) == 0 {
			t.Fatalf("the client's tests: %v\n%s%s", err, rest.String(), stderr.String())
		}
	}
	for name := range ran {
		for i, r := range name {
			if r == '/' {
				delete(ran, name[:i])
			}
		}
	}
	return ran
}

// buildGoClient builds the client's tests. It returns the binary, and the folder in which to run
// it.
func buildGoClient(t *testing.T) (binary, module string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("left out: the Go client's tests can't be built: %v", err)
	}
	dir := t.TempDir()
	module = copyModule(t, clientModule, filepath.Join(dir, "datastore"))
	support := copyModule(t, supportModule, filepath.Join(dir, "support"))
	replaceIn(t, filepath.Join(module, "integration_test.go"), "\nfunc newClient(", "\nfunc newProductionClient(")
	replaceIn(t, filepath.Join(support, "internal", "testutil", "retry.go"), "time.Sleep(sleep)",
		"_ = sleep // an emulator is consistent at once")
	adapter, err := os.ReadFile(filepath.Join("testdata", "goclient", "newclient_test.go"))
	if err == nil {
		err = os.WriteFile(filepath.Join(module, "newclient_test.go"), adapter, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	modfile := filepath.Join(dir, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		contents, err := os.ReadFile(filepath.Join("..", "..", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), contents, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	goCommand(t, "mod", "edit", "-replace="+clientModule+"="+module, "-replace="+supportModule+"="+support, modfile)
	binary = filepath.Join(dir, "client.test")
	goCommand(t, "test", "-c", "-o", binary, "-vet=off", "-mod=readonly", "-modfile="+modfile, clientModule)
	return binary, module
}

// moduleDir returns the folder of a module in the module cache, and downloads the module if
// necessary.
func moduleDir(t *testing.T, path string) string {
	t.Helper()
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(goCommand(t, "mod", "download", "-json", path), &downloaded); err != nil {
		t.Fatal(err)
	}
	return downloaded.Dir
}

// copyModule copies a module that this repository requires. It leaves out files that need modules
// which this repository does not require.
func copyModule(t *testing.T, path, to string) string {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(moduleDir(t, path))); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" {
			return err
		}
		source, err := os.ReadFile(name)
		if err == nil && bytes.Contains(source, []byte(`"go.opentelemetry.io/otel/sdk/`)) {
			err = os.Remove(name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func replaceIn(t *testing.T, name, from, to string) {
	t.Helper()
	contents, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(contents), from) {
		t.Fatalf("%s has no %q: the client's tests have changed, and this one has to follow", name, from)
	}
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(string(contents), from, to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// goCommand runs the go command. If a missing module can't be downloaded, it skips the test. Any
// other failure fails the test.
func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err == nil {
		return stdout
	}
	said := stderr.String()
	for _, unreachable := range []string{"module lookup disabled", "dial tcp", "no such host", "i/o timeout"} {
		if strings.Contains(said, unreachable) {
			t.Skipf("left out: the Go client's tests need a module that is not in the cache, and no proxy answers:\n%s",
				said)
		}
	}
	t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, said)
	return nil
}
