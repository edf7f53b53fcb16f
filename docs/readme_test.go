package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/cloudstandin"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// goBlocks returns the Go code of a page.
func goBlocks(t *testing.T, page string) (all []string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(content), "\n```go\n")[1:] {
		code, _, found := strings.Cut(part, "\n```")
		if !found {
			t.Fatalf("%s: a block without an end", page)
		}
		all = append(all, code+"\n")
	}
	return all
}

// TestRecipes checks that the code of each recipe in recipes.md is also in a test of package
// mapper, and in only one.
func TestRecipes(t *testing.T) {
	tested, err := os.ReadFile("../mapper/recipes_test.go")
	if err != nil {
		t.Fatal(err)
	}
	recipes := goBlocks(t, "recipes.md")
	if examples := strings.Count(string(tested), "\n\t// Output:"); len(recipes) < 5 || examples != len(recipes) {
		t.Errorf("%d recipes, %d examples", len(recipes), examples)
	}
	seen := make(map[string]bool)
	for _, code := range recipes {
		if seen[code] {
			t.Errorf("two recipes have the same code:\n%s", code)
		}
		seen[code] = true
		if !strings.Contains(string(tested), "\n"+code+"\nfunc Example_") {
			t.Errorf("it is not what an example in mapper/recipes_test.go runs:\n%s", code)
		}
	}
}

// TestGuide checks that the code in guide.md is also in the guide_test.go of a package.
func TestGuide(t *testing.T) {
	var tested string
	for _, path := range []string{"../mapper/mappertest/guide_test.go", "../dashboard/guide_test.go"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tested += string(content)
	}
	blocks := goBlocks(t, "guide.md")
	if len(blocks) == 0 {
		t.Fatal("guide.md has no code")
	}
	for _, code := range blocks {
		if !strings.Contains(tested, "\n"+code) {
			t.Errorf("no guide_test.go has it:\n%s", code)
		}
	}
}

// TestNightlyExport checks that an example in package export runs the handler in export.md.
func TestNightlyExport(t *testing.T) {
	tested, err := os.ReadFile("../export/nightly_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlocks(t, "export.md")
	if !slices.ContainsFunc(blocks, func(code string) bool { return strings.HasPrefix(code, "// nightly ") }) {
		t.Fatal("export.md has no handler of a nightly export")
	}
	for _, code := range blocks {
		if strings.HasPrefix(code, "// nightly ") &&
			!strings.Contains(string(tested), "\n"+code+"\nfunc Example_nightly") {
			t.Errorf("it is not what export/nightly_test.go runs:\n%s", code)
		}
	}
}

// TestMissingVariables starts the two small services without one of their environment variables. The
// service must end, and name the variable.
func TestMissingVariables(t *testing.T) {
	required := []string{"GOOGLE_CLOUD_PROJECT", "TASKS_QUEUE", "SERVICE_URL", "PORT"}
	for service, required := range map[string][]string{
		"first": required, "service": append(slices.Clip(required), "TASKS_SERVICE_ACCOUNT"),
	} {
		program, err := cloudstandin.Program(t.Context(), "..", "./examples/"+service)
		if err != nil {
			t.Fatal(err)
		}
		for _, missing := range required {
			c := exec.CommandContext(t.Context(), program)
			// Nobody listens at the emulators' port.
			c.Env = []string{"DATASTORE_EMULATOR_HOST=127.0.0.1:1", "CLOUD_TASKS_EMULATOR_HOST=127.0.0.1:1"}
			for _, name := range required {
				if name != missing {
					c.Env = append(c.Env, name+"=x")
				}
			}
			if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), missing+" is not set") {
				t.Errorf("%s without %s: %v, %s", service, missing, err, out)
			}
		}
	}
}

// TestReadmeProgram builds the README's program, and runs it against the emulators, as a user
// would.
func TestReadmeProgram(t *testing.T) {
	// The README shows the mapper of this program, and not the whole program.
	const source = "../examples/first/main.go"
	whole, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range goBlocks(t, "../README.md") {
		if !strings.Contains(string(whole), "\n"+code+"\n") {
			t.Errorf("the README shows code that %s does not have:\n%s", source, code)
		}
	}
	if out, err := exec.Command("gofmt", "-l", source).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("it is not formatted: %s, %v", out, err)
	}
	program, err := cloudstandin.Program(t.Context(), "..", "./examples/first")
	if err != nil {
		t.Fatal(err)
	}
	e, err := emulator.Start(&emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	client, err := e.DatastoreClient(t.Context(), "readme")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer taskClient.Close()
	const location = "projects/readme/locations/here"
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/mapper"}}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	url := fmt.Sprint("http://127.0.0.1:", port)
	ctx, cancel := context.WithTimeout(t.Context(), testflag.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Stderr = t.Output()
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT=readme", "TASKS_QUEUE="+location+"/queues/mapper",
		"SERVICE_URL="+url, fmt.Sprint("PORT=", port),
		"DATASTORE_EMULATOR_HOST="+e.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST="+e.TasksAddr())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	askUntilSucceeded(ctx, t, url+"/spring-credit")
	var a struct{ Balance int64 } // the account that the program writes
	if err := client.Get(t.Context(), datastore.NameKey("Account", "ann", nil), &a); err != nil || a.Balance != 15 ||
		ctx.Err() != nil {
		t.Errorf("%+v, %v, %v", a, err, ctx.Err())
	}
}

// askUntilSucceeded sends the request that starts a program's job. It repeats the request until the
// answer says that the job has succeeded.
func askUntilSucceeded(ctx context.Context, t *testing.T, url string) {
	t.Helper()
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		answer, err := http.Post(url, "", nil)
		if err != nil {
			continue // the program does not listen yet
		}
		var s mapper.Status
		err = json.NewDecoder(answer.Body).Decode(&s)
		answer.Body.Close()
		if err != nil || s.State != mapper.StateRunning && s.State != mapper.StateSucceeded {
			t.Fatalf("%s, %+v, %v", answer.Status, s, err)
		}
		if s.State == mapper.StateSucceeded {
			return
		}
	}
}
