package docs_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/cloudstandin"
	"github.com/scattermap/scattermap/internal/testflag"
)

func TestMain(m *testing.M) {
	cloudstandin.Main() // this binary also replaces the programs that the page calls, such as gcloud
	code := m.Run()
	cloudstandin.Clean()
	os.Exit(code)
}

// ways are the ways of deployment that the page describes, by the letters in its headings.
var ways = map[string]string{"A": "Terraform", "B": "gcloud", "C": "Own"}

// waysOf returns the letters of the ways to which the section with a heading applies. A heading
// without letters applies to all.
func waysOf(heading string) string {
	m := regexp.MustCompile(`^([ABC](?: and [ABC])*): `).FindStringSubmatch(heading)
	if m == nil {
		return "ABC"
	}
	return m[1]
}

// A step is a block of the page that a reader types, and the output that the page shows.
type step struct {
	block
	prints string
}

// stepsOf returns the steps in the page for a reader who chooses one way. A step is a script in the
// page, with the output that the page shows for it.
func stepsOf(t *testing.T, way string) (all []step) {
	t.Helper()
	blocks, _ := readPage(t, "deploy.md")
	for _, b := range blocks {
		if !strings.Contains(waysOf(b.heading), way) {
			continue
		}
		switch b.language {
		case "sh":
			all = append(all, step{block: b})
		case "text":
			all[len(all)-1].prints += b.text
		default:
			t.Errorf("%s: a block that is neither sh nor text", b)
		}
	}
	return all
}

// An outcome is the result of running the steps.
type outcome struct {
	printed []string // output of each step
	failed  int      // index of the step that failed; -1: none
	cloud   *cloudstandin.Cloud
}

// follow runs steps in one shell until one fails.
func follow(t *testing.T, steps []step) outcome {
	t.Helper()
	cloud, err := cloudstandin.Start(cloudstandin.Options{Checkout: "..", Project: "my-project-123",
		Log: func(format string, args ...any) {
			fmt.Fprintf(t.Output(), format+"\n", args...)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	const mark = "=== step "
	var script strings.Builder
	script.WriteString("exec 2>&1\nset -eu\n")
	for i, s := range steps {
		fmt.Fprintf(&script, "echo %q\n%s\n", fmt.Sprint(mark, i), s.text)
	}
	fmt.Fprintf(&script, "echo %q\n", mark+"end")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // without its tasks, a job would never end
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.WaitDelay = time.Second
	shell.Dir = t.TempDir()
	shell.Env = cloud.Environment()
	out, err := shell.Output()
	o := outcome{failed: -1, cloud: cloud}
	for _, part := range strings.Split(string(out), mark)[1:] {
		number, text, _ := strings.Cut(part, "\n")
		if number != "end" {
			o.printed = append(o.printed, text)
		}
	}
	if err != nil {
		o.failed = len(o.printed) - 1
	} else if len(o.printed) != len(steps) {
		t.Fatalf("%d of %d steps were run:\n%s", len(o.printed), len(steps), out)
	}
	return o
}

// missing returns the first line of want that is not in got, or "". The order of lines does not
// matter, because commands list failures in any order. "..." stands for any text.
func missing(want, got string) string {
	lines := strings.Split(got, "\n")
	for line := range strings.Lines(want) {
		line = strings.TrimRight(line, "\n")
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, ".*") + "$")
		i := slices.IndexFunc(lines, func(l string) bool { return pattern.MatchString(strings.TrimRight(l, " ")) })
		if i < 0 {
			return line
		}
		lines = slices.Delete(lines, i, i+1)
	}
	return ""
}

// TestDeployPage follows docs/deploy.md in each of its ways, from an empty project to a finished
// job and an alarm, and back to an empty project.
func TestDeployPage(t *testing.T) {
	needShell(t)
	for way, name := range ways {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && way != "B" {
				t.Skip("it builds programs")
			}
			steps := stepsOf(t, way)
			o := follow(t, steps)
			if o.failed >= 0 {
				t.Fatalf("%s fails:\n%s\nand prints:\n%s", steps[o.failed], steps[o.failed].text, o.printed[o.failed])
			}
			for i, s := range steps {
				if line := missing(s.prints, o.printed[i]); line != "" {
					t.Errorf("%s: the page says that it prints %q, and it prints:\n%s", s, line, o.printed[i])
				}
			}
			balances, err := o.cloud.Balances(t.Context(), "Account")
			if want := map[string]int64{"ann": 15, "bob": 10, "cem": 7}; err != nil || !maps.Equal(balances, want) {
				t.Errorf("the accounts have %v, %v; want %v", balances, err, want)
			}
			expiring := []string{"(default)/ScattermapJob/expires", "(default)/ScattermapRange/expires",
				"(default)/ScattermapUndoBatch/expires"}
			if got := o.cloud.Expiring(); !slices.Equal(got, expiring) {
				t.Errorf("expiring: %q, want %q", got, expiring)
			}
			if refused := o.cloud.Refused(); len(refused) > 0 {
				t.Errorf("the service lacks permissions: %q", refused)
			}
			if mails := o.cloud.Mails(); len(mails) == 0 || !strings.HasPrefix(mails[0], "to ann@example.com: "+
				"credit: ") {
				t.Errorf("the alarm that was tried has sent %q", mails)
			}
			if left := o.cloud.Left(); len(left) > 0 {
				t.Errorf("all was removed, and this is there: %q", left)
			}
		})
	}
}

// A mistake is a change of the page that makes it wrong.
type mistake struct {
	way      string
	old, new string
	until    string // follow the page up to the step that contains this text; empty: follow all
	// a text in the output of the step that fails, or of the first step whose output differs from
	// the page
	want string
}

// notAllowed is what a command prints if the service's account lacks a role. Only the log has the
// cause.
const notAllowed = "has failed: the request failed: the service's account may not do this (PermissionDenied) in " +
	"queue projects/my-project-123/locations/europe-west1/queues/mapper; the service's log " +
	"says more, in the line of request "

// mistakes are mistakes of all kinds that the test must find, by their descriptions.
var mistakes = map[string]mistake{
	"nobody is signed in": {"B", `gcloud auth login "$OPERATOR"`, "true", "",
		"do not currently have an active account"},
	"an API is missing": {"B", " cloudtasks.googleapis.com", "", "",
		"cloudtasks.googleapis.com has not been used in project 123456789012"},
	"an API that there is not": {"B", "cloudbuild.googleapis.com", "cloudbuilds.googleapis.com", "",
		"Not found or permission denied for service(s)"},
	"no database": {"B", "gcloud firestore databases create", "true", "", "does not exist"},
	"a database of the other mode": {"B", "--type=datastore-mode", "--type=firestore-native", "",
		"not available for Firestore in Native Mode"},
	"a database without a location": {"B", `--database="(default)" --location="$REGION"`,
		`--database="(default)"`, "", "--location"},
	"a flag that there is not": {"B", "--display-name", "--displayname", "",
		"unrecognized arguments: --displayname"},
	"a question nobody answers": {"C", `--set-env-vars="$ENVIRONMENT" --quiet`,
		`--set-env-vars="$ENVIRONMENT"`, "", "cloud-run-source-deploy"},
	"builds without a role": {"B", "--role=roles/cloudbuild.builds.builder",
		"--role=roles/logging.logWriter", "", "lacks roles/cloudbuild.builds.builder"},
	"no repository": {"B", "gcloud artifacts repositories create", "true", "", "not found"},
	"no image":      {"B", "gcloud builds submit", "true", "", "not found"},
	"a queue elsewhere": {"B", `queues create "$QUEUE" --location="$REGION"`,
		`queues create "$QUEUE" --location=us-central1`, "", "Queue does not exist"},
	"a queue without a location": {"B", `queues create "$QUEUE" --location="$REGION"`,
		`queues create "$QUEUE"`, "", "--location"},
	"a service without a region": {"B", `run deploy "$SERVICE" --region="$REGION"`, `run deploy "$SERVICE"`,
		"", "--region"},
	"an account that there is not": {"B", `service-accounts create "$SERVICE-tasks"`,
		`service-accounts create "$SERVICE-queue"`, "", "Unknown service account"},
	"an environment is missing": {"B", "SERVICE_URL=$URL", "SERVICE=$URL", "", "SERVICE_URL is not set"},
	"no role in the database": {"B", "--role=roles/datastore.user", "--role=roles/datastore.viewer", "",
		"Missing or insufficient permissions"},
	"no role for adding tasks": {"B", "--role=roles/cloudtasks.enqueuer", "--role=roles/cloudtasks.viewer",
		"scattermap start", notAllowed},
	"no role for looking at tasks": {"B", "--role=roles/cloudtasks.viewer", "--role=roles/cloudtasks.enqueuer",
		"", "100 at once"},
	"no role for acting as another": {"B", "--role=roles/iam.serviceAccountUser", "--role=roles/run.invoker",
		"scattermap start", notAllowed},
	"tasks may not call": {"B", `--member="serviceAccount:$TASKS_ACCOUNT" --role=roles/run.invoker`,
		`--member="serviceAccount:$TASKS_ACCOUNT" --role=roles/run.builder`, "The last call", "schedule: 7"},
	"tokens for somebody else": {"B", `--oidc-token-audience="$URL"`, `--oidc-token-audience="$SERVICE"`,
		"The last call", "schedule: 16"},
	"the operator may not call": {"B", `--member="user:$OPERATOR" --role=roles/run.invoker`,
		`--member="user:$OPERATOR" --role=roles/run.builder`, "scattermap login", "403"},
	"a channel that there is not": {"B", `--notification-channels="$CHANNEL"`, `--notification-channels=other`,
		"", "Could not find notification channel"},
	"an alarm without its limit": {"B", `"alertStrategy"`, `"strategy"`, "", "needs a combiner, a condition"},
	"a module that is not tidy":  {"C", "go mod tidy", "true", "", "cannot find module providing package"},
	"builds from source, no role": {"C", "--role=roles/run.builder", "--role=roles/logging.logWriter", "",
		"lacks roles/run.builder"},
	"Terraform is not initialized": {"A", "terraform -chdir=deploy/terraform/example init", "true", "",
		"terraform init"},
	"Terraform has no credentials": {"A", "gcloud auth application-default login", "true", "",
		"application default credentials"},
	"Terraform has a variable less": {"A", `-var="image=$IMAGE"`, "", "", `"image" is not set`},
	"Terraform has one too many": {"A", `-var="image=$IMAGE"`, `-var="image=$IMAGE" -var="nam=x"`, "",
		"undeclared variable"},
	"an operator that is no person": {"A", `-var="operator=$OPERATOR"`, `-var="operator=ann"`, "",
		"Invalid value for variable"},
	"Terraform deploys no image": {"A", "gcloud builds submit", "true", "", "not found"},
	"something is left":          {"B", `gcloud run services delete "$SERVICE"`, "true", "", "Deleted queue"},
}

// TestDeployPageIsChecked makes mistakes in the page, and checks that TestDeployPage would find
// each. It makes a third of them, and all in .ci/nightly.
func TestDeployPageIsChecked(t *testing.T) {
	needShell(t)
	if testing.Short() {
		t.Skip("it follows the page once for each mistake")
	}
	some := testflag.Size(t, 0, 3, 1)
	first := rand.IntN(some)
	for i, name := range slices.Sorted(maps.Keys(mistakes)) {
		if i%some != first {
			continue
		}
		m := mistakes[name]
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			steps, made := stepsOf(t, m.way), false
			for i := range steps {
				made = made || strings.Contains(steps[i].text, m.old)
				steps[i].text = strings.ReplaceAll(steps[i].text, m.old, m.new)
				if m.until != "" && strings.Contains(steps[i].text, m.until) {
					steps = steps[:i+1]
					break
				}
			}
			if !made {
				t.Fatalf("the page has no %q", m.old)
			}
			o := follow(t, steps)
			said := strings.Join(o.cloud.Refused(), "\n") // used if no step has failed
			for i, s := range steps[:len(o.printed)] {
				if i == o.failed || o.failed < 0 && missing(s.prints, o.printed[i]) != "" {
					said = o.printed[i]
					break
				}
			}
			if !strings.Contains(said, m.want) {
				t.Errorf("it was not found: step %d failed, and printed:\n%s", o.failed, said)
			}
		})
	}
}

// needShell skips a test on a system without bash.
func needShell(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || !cloudstandin.Runs() {
		t.Skip("the page's blocks are run on Linux, with bash")
	}
}

// typed is the flag -typed FILE, after -args: a script of the commands in the page, for TestTyped.
var typed = flag.String("typed", "", "a script that TestTyped follows")

// TestTyped runs the script in the flag -typed as a reader of the page would, and prints the
// result.
func TestTyped(t *testing.T) {
	if *typed == "" {
		t.Skip("left out: no script is given, by -args -typed FILE")
	}
	needShell(t)
	text, err := os.ReadFile(*typed)
	if err != nil {
		t.Fatal(err)
	}
	o := follow(t, []step{{block: block{language: "sh", text: string(text)}}})
	t.Log(o.printed[0])
	balances, err := o.cloud.Balances(t.Context(), "Account")
	t.Logf("balances %v, %v; mails %q; left %q; refused %q", balances, err, o.cloud.Mails(), o.cloud.Left(),
		o.cloud.Refused())
	if o.failed >= 0 {
		t.Error("it fails")
	}
}
