package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"github.com/creack/pty"
	"go.yaml.in/yaml/v3"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

type account struct{ Balance int64 }

type credit struct{ Amount int64 }

// broken makes the function of the job fail on one account in ten. The error's text contains an
// escape sequence, which commands must not print.
var broken atomic.Bool

var addCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	if broken.Load() && strings.HasSuffix(a.Key.Name, "7") {
		return mapper.Permanent(fmt.Errorf("the ledger has no %s\x1b[31m", a.Key.Name))
	}
	time.Sleep(100 * time.Microsecond)
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// newService starts a service with n accounts, and returns its URL. The service accepts requests
// with certain tokens.
func newService(t *testing.T, n int, more ...mapper.AnyMapper) string {
	t.Helper()
	server := httptest.NewServer(newAPI(t, n, func(r *http.Request) (string, error) {
		switch r.Header.Get("Authorization") {
		case "Bearer good":
			return "ann@example.com", nil
		case "Bearer eve":
			return "", auth.ErrForbidden
		}
		return "", auth.ErrUnauthenticated
	}, more...))
	t.Cleanup(server.Close)
	t.Setenv("SCATTERMAP_SERVICE", server.URL)
	t.Setenv("SCATTERMAP_TOKEN", "good")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // the test's user has not logged in
	return server.URL
}

// newAPI returns the jobs API of a service with n accounts. It accepts the requests for which allow
// returns no error.
func newAPI(t *testing.T, n int, allow func(*http.Request) (string, error), more ...mapper.AnyMapper) http.Handler {
	t.Helper()
	var handler http.Handler
	e := emulator.ForTest(t,
		&emulator.Options{
			Transport: emulator.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				handler.ServeHTTP(w, r)
			}))})
	client, err := e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		for i := first; i < min(n, first+500); i++ {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("user-%06d", i), nil))
		}
		if _, err := client.PutMulti(t.Context(), keys, make([]account, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	queue := newQueue(t, taskClient, "q")
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { bucket.Close() })
	entities, err := export.NewEntities("export", bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler) // deliveries may still run and log after the test has ended
	mappers := slices.Concat(more, prebuilt.Mappers(), entities.Mappers())
	if !slices.ContainsFunc(more, func(m mapper.AnyMapper) bool { return m.Name() == addCredit.Name() }) {
		mappers = append(mappers, addCredit)
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: mappers, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	handler = engine.Handler()
	api, err := jobsapi.NewHandler(engine, &jobsapi.Options{Logger: log, Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// newQueue makes a queue with a name in a project of the test's emulator.
func newQueue(t *testing.T, client *cloudtasks.Client, name string) *tasks.Queue {
	t.Helper()
	const location = "projects/test/locations/here"
	name = location + "/queues/" + name
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: name,
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 4}}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(client, name, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	return queue
}

// command runs a command line in this process. The text typed is its standard input. It returns the
// outputs and the exit code.
func command(t *testing.T, typed string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	err := run(t.Context(), args, strings.NewReader(typed), &out, &errs)
	if err != nil {
		fmt.Fprintln(&errs, "scattermap:", err)
	}
	return out.String(), errs.String(), codeOf(err)
}

// words splits a command line at spaces outside of single quotes.
func words(s string) (all []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(s, -1) {
		all = append(all, strings.Trim(w, "'"))
	}
	return all
}

// TestJobs runs all commands for jobs, as an operator does.
func TestJobs(t *testing.T) {
	newService(t, 2000)
	broken.Store(true)
	t.Cleanup(func() { broken.Store(false) })
	for _, c := range []struct {
		line, typed string
		code        int
		want        string // a part of the output
	}{
		{"jobs", "", 0, "No jobs yet."},
		{"plan add-credit --kind Account", "", 0, "Entities:  2,000\n"},
		{"plan add-credit --kind Account --share 10% --per-entity 5ms", "", 0, "Entities:  about 200\n"},
		{"plan count --kind Account -o json", "", 0, `"entities": 2000`},
		{"plan nobody --kind Account", "", 1, `unknown mapper "nobody"`},
		{"plan count", "", 2, "--kind is empty"},
		{"plan count --kind Nothing", "", 1, "Nothing"},
		{"plan --kind Account", "", 2, "plan: name one mapper"},
		{"jobs", "", 0, "No jobs yet."},
		{"start add-credit --kind Account --params '{\"Amount\": 10}' --id spring --page-size 50 --failure-limit -1 " +
			"--reason 'the spring credit' --watch", "", 3,
			`spring: succeeded with failures, 1,800 entities processed, 200 failures`},
		{"start add-credit --kind Account --params '{\"Amount\": 10}' --id spring", "", 0,
			"spring: succeeded with failures"},
		{"jobs", "", 0, "spring  add-credit  succeeded with failures"},
		{"jobs --state running", "", 0, "No job matches."},
		{"describe spring", "", 0, "Processed:    1,800 entities, 1,800 of them written"},
		{"describe spring -o json", "", 0, `"failures": 200`},
		{"describe spring -o yaml", "", 0, "failures: 200"},
		{"failures spring", "", 0, `/Account,"user-00`},
		{"failures spring --all -o json", "", 0, "the ledger has no user-001997"},
		{"failures spring -o json", "", 0, "There are more: --all lists them."},
		{"failures spring --limit 150", "", 0, "There are more: --all lists them."},
		{"failures spring --limit 200", "", 0, `/Account,"user-00`},
		{"failures spring --limit 0", "", 2, "--limit is 0"},
		{"failures spring --by-cause", "", 0, "200       c2df1b    the ledger has no #"},
		{"failures spring --by-cause -o json", "", 0, `"cause": "the ledger has no # [#"`},
		{"retry spring --cause none", "", 1, `no failure has the cause "none"`},
		{"retry spring --cause 'the ledger has no # [#'", "", 0, "spring: "},
		{"watch spring", "", 3, "200 failures"},
		{"history spring", "", 0, "ann@example.com  the spring credit"},
		{"retry spring --watch", "", 3, "failures"},
		{"abort spring", "n\n", 1, "nothing was done: --yes does it without asking"},
		{"abort spring", "", 1,
			"Abort the job spring (succeeded with failures)? An aborted job can't be resumed. [y/N]"},
		{"abort spring -y", "", 1, `the job's state does not allow that`},
		{"rate spring 100", "", 1, "it is \"succeeded with failures\""},
		{"clean-up spring --yes", "", 0, "spring: succeeded with failures"},
		{"stop-all", "", 0, "No jobs are running."},
		{"start add-credit --kind Account --params '{\"Amount\": 1}' --id filtered --filter 'Balance = 10' --watch", "",
			0, "filtered: succeeded, 1,800 entities processed"},
		{"start add-credit --kind Account --params '{\"Amount\": 1}' --id tried --dry-run --page-size 50 -w", "", 3,
			"tried: succeeded with failures, 1,800"},
		{"describe tried", "", 0, "would(change Balance) = 1,800"},
		{"start add-credit --kind Account --params '{\"Amount\": 1}' --id tried", "", 1, "other arguments"},
		{"start add-credit --kind Account --params '{\"Amount\": 1}' --id slow --rate 20 --expected-workers 4", "", 0,
			"slow: running"},
		{"pause slow --reason lunch", "", 0, "slow: paused"},
		{"watch slow", "", 3, "paused"},
		{"resume slow", "", 0, "slow: running"},
		{"rate slow 30 --calls 20 --writes 100", "", 0,
			"it keeps to its rate of 30 entities, 100 writes and 20 calls a second"},
		{"rate slow 40 --for 2h", "", 0, "it keeps to its rate of 40 entities a second"},
		{"rate slow 40 --for 2d", "", 0, "it keeps to its rate of 40 entities a second"},
		{"rate slow 40 --for -2h", "", 2, "--for"},
		{"history slow", "", 0, "its rate is set to 40 entities a second, for 2h0m0s"},
		{"history slow", "", 0, "paused"},
		{"stop-all --yes", "", 0, "slow: paused"},
		{"start count --kind Account --id counted -w --params '{\"by\": \"Balance\"}'", "", 0,
			"counted: succeeded, 2,000"},
		{"describe counted", "", 0, "Balance=0 = 200"},
		{"start export --kind Account --id saved -w --params '{\"folder\": \"saved\"}'", "", 0,
			"saved-delete: succeeded"},
		{"watch saved -o json", "", 0, `"id": "saved-delete"`},
		{"start delete --kind Account --id gone -w", "", 0,
			"This is a rehearsal and writes nothing. To write, add --execute."},
		{"describe gone", "", 0, "would(delete) = 2,000"},
		{"examples gone", "", 0, "delete  Balance"},
		{"examples tried", "", 0, "change  Balance"},
		{"examples counted", "", 0, "No examples"},
		{"start delete --kind Account --id gone -w --execute -y", "", 1, "other arguments"},
		{"start delete --kind Account --dry-run --execute", "", 2, "contradict"},
		{"start count --kind Account --id wide --page-size 5000", "", 1, "--page-size has to be in [1, 1000]"},
		{"start delete --kind Account --id really-gone -w --execute --filter 'Balance = 0'", "", 1,
			"delete will run over 200 entities. Type that number to start it:"},
		{"start delete --kind Account --id really-gone -w --execute --filter 'Balance = 0'", "", 1,
			"no number was typed; --yes starts it without asking"},
		{"start delete --kind Account --id really-gone -w --execute --filter 'Balance = 0'", "201\n", 1,
			"that is another number"},
		{"start delete --kind Account --id really-gone -w --execute --filter 'Balance = 0' --reason 'all empty'",
			"200\n", 0, "really-gone: succeeded, 200"},
		{"history really-gone", "", 0, "all empty"},
		{"start count --kind Account --id left -w", "", 0, "left: succeeded, 1,800"},
		{"abort slow", "y\n", 0, "slow: aborted"},
		{"clone left", "n\n", 1, "Run count again? Job left is succeeded, and has processed 1,800 entities. [y/N]"},
		{"clone left --id once-more --yes -w", "", 0, "once-more: succeeded, 1,800"},
		{"clone tried --id tried-again -w --reason 'once more'", "", 0, "tried-again: succeeded, 1,800"},
		{"history tried-again", "", 0, "once more"},
		{"describe tried-again", "", 0, "would(change Balance) ="},
		{"clone nobody", "", 1, "nobody"},
		{"start touch --kind Account --id few --share 2.5% -w", "", 0, "few: succeeded"},
		{"describe few", "", 0, `"value":"0-2500/100000"`},
		{"start touch --kind Account --id most --except 2.5% -w", "", 0, "most: succeeded, 1,7"},
		{"start touch --kind Account --share 1", "", 2, `"1" has to be from 0.1% to 99.9%`},
		{"start touch --kind Account --share 1% --except 1%", "", 2, "contradict"},
		{"start touch --kind Account --id touched -w", "", 0, "touched: succeeded, 1,800"},
		{"describe touched", "", 0, "1,800 entities, 1,800 of them written"},
		{"start touch --kind Account --id held --rate 20 --expected-workers 4", "", 0, "held: running"},
		{"pause held", "", 0, "held: paused"},
		{"rate held 0", "", 0, "held: paused"},
		{"resume held --watch", "", 0, "held: succeeded, 1,800 entities processed"},
	} {
		out, errs, code := command(t, c.typed, words(c.line)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: exit code %d, want %d, and %q in\n%.1000s%s", c.line, code, c.code, c.want, out, errs)
		}
		if strings.ContainsRune(out+errs, '\x1b') {
			t.Errorf("%s prints what a terminal acts on: %q", c.line, out+errs)
		}
		if strings.Contains(c.line, "-o json") && !json.Valid([]byte(out)) || strings.Contains(c.line, "-o yaml") &&
			yaml.Unmarshal([]byte(out), new(map[string]any)) != nil {
			t.Errorf("%s prints\n%s", c.line, out)
		}
	}
}

// TestNoService runs each command with wrong flags, and against servers that are down, refuse the
// caller, or are no service. The error names the problem and the remedy.
func TestNoService(t *testing.T) {
	url := newService(t, 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<html>Welcome</html>")
	}))
	defer other.Close()
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Rate exceeded.", http.StatusTooManyRequests)
	}))
	defer full.Close()
	lines := []string{"jobs", "mappers", "describe j", "start add-credit --kind Account", "watch j", "pause j",
		"resume j", "abort j -y", "retry j", "move j", "rate j 5", "failures j", "history j", "undo j -y", "left j",
		"examples j", "clone j -y", "plan m --kind K", "clean-up j -y", "stop-all -y"}
	for name, c := range map[string]struct {
		service, token string
		code           int
		want           []string
	}{
		"nobody listens": {"http://127.0.0.1:1", "good", exitError,
			[]string{"127.0.0.1:1", "does not answer", "$SCATTERMAP_SERVICE"}},
		"no address":      {"", "good", exitUsage, []string{"--service or $SCATTERMAP_SERVICE"}},
		"no URL":          {"credit", "good", exitUsage, []string{`"credit"`, "http or https URL"}},
		"http elsewhere":  {"http://192.0.2.1", "", exitUsage, []string{"https"}},
		"wrong token":     {url, "bad", exitError, []string{"401", "$SCATTERMAP_TOKEN"}},
		"no token":        {url, "", exitError, []string{"wants a token", "auth.Loopback", "$SCATTERMAP_TOKEN"}},
		"another account": {url, "eve", exitError, []string{"403", "OPERATORS"}},
		"something else":  {other.URL, "good", exitError, []string{"not a service of scattermap"}},
		"no instance": {full.URL, "good", exitError,
			[]string{"no instance of the service", "429 Too Many Requests: Rate exceeded."}},
		"its jobs":     {url + "/jobs/", "good", exitUsage, []string{"leave out /jobs"}},
		"another path": {missing.URL, "good", exitError, []string{"404", "$SCATTERMAP_SERVICE"}},
	} {
		t.Setenv("SCATTERMAP_SERVICE", c.service)
		t.Setenv("SCATTERMAP_TOKEN", c.token)
		for _, line := range lines {
			out, errs, code := command(t, "", words(line)...)
			for _, want := range c.want {
				if code != c.code || !strings.Contains(errs, want) || out != "" {
					t.Errorf("%s: %s: exit code %d, want %d, and %q in\n%s%s", name, line, code, c.code, want, out,
						errs)
				}
			}
		}
	}
	t.Setenv("SCATTERMAP_SERVICE", url)
	t.Setenv("SCATTERMAP_TOKEN", "good")
	for line, want := range map[string]string{
		"describe":                          "name one job",
		"pause a b":                         "name one job",
		"rate j":                            "a number of entities a second",
		"rate j many":                       `"many" is not a number`,
		"rate j -5":                         `"-5" is negative`,
		"rate j -.5 --for 2h":               `"-.5" is negative`,
		"budget j -5":                       `"-5" is negative`,
		"rate j -x 5":                       "unknown shorthand flag",
		"start m --kind K --rate 1/s":       `"1/s" for "--rate" flag: it has to be a number (scatt`,
		"start m --kind K --page-size 1.5":  `"1.5" for "--page-size" flag: it has to be a whole number (scatt`,
		"rate j 5 --writes many":            `"many" for "--writes" flag: it has to be a number (scatt`,
		"rate j 5 --writes 1e400":           `"1e400" for "--writes" flag: it is out of range (scatt`,
		"status j":                          "describe",
		"list":                              "jobs",
		"cancel j":                          "abort",
		"start":                             "name one mapper",
		"start add-credit":                  "--kind",
		"start m --kind K --params x":       `--params is "x"`,
		"start m --kind K --filter x":       `--filter "x"`,
		"start m --kind K --filter 'n < x'": `such as Seats > 10 AND plan = 'free': column`,
		"start m --kind K --filter 'n < 1 OR n > 2'":      `a job has no OR`,
		"start m --kind K --filter 'n < 1 LIMIT 2'":       `there is more than a condition`,
		"start m --kind K --filter '__key__ > KEY(K, 1)'": `of keys there are __key__ >=`,
		"jobs -o xml":              "table, json or yaml",
		"jobs --sate running":      "--sate",
		"jbos":                     "jobs", // expects the hint "did you mean this?"
		"clean-up j --expire soon": "--expire",
	} {
		if _, errs, code := command(t, "", words(line)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, want %d, and %q in %s", line, code, exitUsage, want, errs)
		}
	}
	for line, want := range map[string]string{
		"describe none":             `no such job: none; "scattermap jobs --all" lists the jobs of`,
		"start none --kind Account": "add-credit",
		"jobs --state done":         `no state "done"`,
		"start add-credit --kind Acount --params '{\"Amount\": 1}'": "Acount",
	} {
		if _, errs, code := command(t, "", words(line)...); code != exitError || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, want %d, and %q in %s", line, code, exitError, want, errs)
		}
	}
	if _, errs, _ := command(t, "", "--verson"); strings.Count(errs, "scattermap:") != 1 {
		t.Errorf("--verson: the command names itself twice: %s", errs)
	}
	t.Setenv("SCATTERMAP_TOKEN", "")
	if _, errs, code := command(t, "", "jobs", "--service", "https://service.invalid", "--token-command",
		"false"); code != exitError || !strings.Contains(errs, "--token-command") {
		t.Errorf("no token: %d %s", code, errs)
	}
}

// TestVersion prints the version in three ways.
func TestVersion(t *testing.T) {
	t.Parallel()
	line, errs, code := command(t, "", "--version")
	version, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "scattermap version ")
	if code != 0 || !ok {
		t.Errorf("--version: exit code %d, %s%s", code, line, errs)
	}
	for args, want := range map[string]string{"version": line,
		"version -o json": fmt.Sprintf("{\n  \"version\": %q\n}\n", version)} {
		if out, errs, code := command(t, "", words(args)...); code != 0 || out != want {
			t.Errorf("%s: exit code %d, %s%s, want %s", args, code, out, errs, want)
		}
	}
}

// TestFailuresGone lists the failures of a job after a clean-up has deleted them. The command must
// not say that there were none.
func TestFailuresGone(t *testing.T) {
	newService(t, 100)
	broken.Store(true)
	t.Cleanup(func() { broken.Store(false) })
	for _, line := range []string{
		"start add-credit --kind Account --params '{\"Amount\": 10}' --id spring --failure-limit -1 --watch",
		"clean-up spring --yes --failures",
	} {
		command(t, "", words(line)...)
	}
	for { // until the last failure is deleted, or the test times out
		if out, _, _ := command(t, "", "failures", "spring", "-o", "json"); out == "[]\n" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, line := range []string{"failures spring", "failures spring --by-cause"} {
		const want = "A clean-up has deleted the list of failures. Their number was 10.\n"
		if out, errs, _ := command(t, "", words(line)...); out != want {
			t.Errorf("%s: %q, want %q; %s", line, out, want, errs)
		}
	}
}

// TestLostAnswer loses the answer to a start without --id, in several ways. The error names the ID
// that the command has made: a repeated start with another ID would credit the accounts twice.
func TestLostAnswer(t *testing.T) {
	var lose atomic.Pointer[func(http.ResponseWriter)]
	var deaf atomic.Bool // whether the service answers no status
	api := newAPI(t, 10, auth.Loopback)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if deaf.Load() && r.Method == http.MethodGet {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		how := lose.Load()
		if how == nil || r.Method != http.MethodPost {
			api.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(httptest.NewRecorder(), r)
		(*how)(w)
	}))
	defer server.Close()
	t.Setenv("SCATTERMAP_SERVICE", server.URL)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // the test's user has not logged in
	line := words("start add-credit --kind Account --params '{\"Amount\": 10}' --allow-overlap")
	for name, how := range map[string]func(w http.ResponseWriter){
		"connection": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"half": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
		},
		"Cloud Run": func(w http.ResponseWriter) { http.Error(w, "<html>", http.StatusBadGateway) },
		"service":   func(w http.ResponseWriter) { http.Error(w, `{"error": "oh"}`, http.StatusInternalServerError) },
	} {
		lose.Store(&how)
		_, errs, code := command(t, "", line...)
		id := regexp.MustCompile(`--id (add-credit-\S+)`).FindStringSubmatch(errs)
		if name == "Cloud Run" && !strings.Contains(errs, "no instance of the service") {
			t.Errorf("%s: %s", name, errs)
		}
		if code != exitError || id == nil || !strings.Contains(errs, "may have started") {
			t.Errorf("%s: exit code %d, and no ID in %s", name, code, errs)
			continue
		}
		if _, named, _ := command(t, "", append(line, "--id", "mine")...); strings.Contains(named, "--id") {
			t.Errorf("%s: the caller knows the ID: %s", name, named)
		}
		lose.Store(nil)
		if _, errs, code := command(t, "", append(line, "--watch", "--id", id[1])...); code != 0 {
			t.Errorf("%s: %s", name, errs)
		}
	}
	out, _, _ := command(t, "", words("jobs --mapper add-credit -o json")...)
	if n := strings.Count(out, `"id": "add-credit-`); n != 4 {
		t.Errorf("%d jobs, want one for each start:\n%s", n, out)
	}
	lose.Store(nil)
	deaf.Store(true)
	if _, errs, code := command(t, "", append(line, "--watch")...); code != exitError ||
		!regexp.MustCompile(`no instance of .*; the job add-credit-\S+ has started`).MatchString(errs) {
		t.Errorf("the watch failed: %s", errs)
	}
	deaf.Store(false)
	if _, errs, _ := command(t, "", append(line, "--page-size", "5000")...); strings.Contains(errs, "--id") {
		t.Errorf("the start was refused: %s", errs)
	}
}

// TestWatch follows a job on a terminal, where a bar moves, and in a pipe, where lines are printed.
func TestWatch(t *testing.T) {
	newService(t, 1500)
	binary := program(t)
	start := func(id string) {
		t.Helper()
		if out, errs, code := command(t, "",
			words("start add-credit --kind Account --params '{\"Amount\": 10}' --rate 500 --page-size 50 --id "+
				id)...); code != 0 {
			t.Fatal(out, errs)
		}
	}
	start("terminal")
	cmd := exec.Command(binary, "watch", "terminal")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	_, _ = io.Copy(&shown, terminal) // ends with an error when the terminal closes
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, shown.String())
	}
	bars := strings.Count(shown.String(), "█")
	if text := shown.String(); bars < 10 || !strings.Contains(text, "\r") ||
		!strings.Contains(text, "terminal: running") ||
		!strings.Contains(text, "terminal: succeeded, 1,500 entities processed, 0 failures") {
		t.Errorf("the terminal shows %q", text)
	}

	start("pipe")
	out, err := exec.Command(binary, "watch", "pipe").CombinedOutput()
	text := string(out)
	if err != nil || strings.ContainsAny(text, "\r█\x1b") || !strings.Contains(text, "pipe: running") ||
		!strings.HasSuffix(text, "pipe: succeeded, 1,500 entities processed, 0 failures\n") {
		t.Errorf("the pipe has %q, %v", text, err)
	}
	start("interrupted")
	cmd = exec.Command(binary, "watch", "interrupted")
	says, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(says)
	first, err := lines.ReadString('\n') // now it watches
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	failed := new(exec.ExitError)
	if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != exitError ||
		!strings.Contains(string(rest), "interrupted goes on") {
		t.Errorf("%v: %s%s", err, first, rest)
	}
}

// TestCompletion completes the name of a job in the shells that are installed.
func TestCompletion(t *testing.T) {
	binary := program(t)
	newService(t, 10)
	command(t, "", words("start count --kind Account --id spring-credit --watch")...)
	const line = "scattermap describe sp"
	// for each shell: its flags, the code before the path of the completion script, and the code
	// that asks for a completion
	for shell, with := range map[string][3]string{
		"bash": {"--norc", "source ", `
			_get_comp_words_by_ref() { cur=sp; prev=describe; words=("${COMP_WORDS[@]}"); cword=2; }
			COMP_WORDS=(` + line + `) COMP_CWORD=2 COMP_LINE="` + line + `" COMP_POINT=22 COMP_TYPE=9
			complete -p scattermap && __start_scattermap; echo "${COMPREPLY[@]}"`},
		"zsh": {"-f", "autoload -U compinit; compinit -u -D; source ", `
			_describe() { print -r -- $completions }
			words=(` + line + `) CURRENT=3; print -r -- $_comps[scattermap]; _scattermap`},
		"fish": {"--no-config", "source ", "\ncomplete -C '" + line + "'"},
	} {
		flags, load, after := with[0], with[1], with[2]
		t.Run(shell, func(t *testing.T) {
			script, errs, code := command(t, "", "completion", shell)
			if code != 0 || !strings.Contains(script, "scattermap") {
				t.Fatal(errs)
			}
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("left out: %s is not installed", shell)
			}
			file := filepath.Join(t.TempDir(), "completion")
			if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(path, "-n", file).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			loads := exec.Command(path, flags, "-c", load+file+after)
			loads.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
			out, err := loads.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "spring-credit") || strings.Contains(string(out), "rror") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestWatchExport watches the three jobs of an export whose ID is as long as possible. The service
// fails once at each of its jobs.
func TestWatchExport(t *testing.T) {
	id := strings.Repeat("e", 93)
	next := map[string]string{id: id + "-join", id + "-join": id + "-delete"}
	mappers := map[string]string{id: "export", id + "-join": "export-join", id + "-delete": "export-delete"}
	failed := map[string]bool{id: true}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		job := path.Base(r.URL.Path)
		switch {
		case mappers[job] == "":
			http.Error(w, `{"error": "no such job"}`, http.StatusNotFound)
		case !failed[job]:
			failed[job] = true
			http.Error(w, "busy", http.StatusServiceUnavailable)
		default:
			json.NewEncoder(w).Encode(mapper.Status{ID: job, Mapper: mappers[job], State: mapper.StateSucceeded,
				Phase: mapper.PhaseEnded, Params: json.RawMessage(`{"run": "1"}`)})
		}
	}))
	defer server.Close()
	t.Setenv("SCATTERMAP_SERVICE", server.URL)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // the test's user has not logged in
	out, errs, code := command(t, "", "watch", id)
	for job := id; job != ""; job = next[job] {
		if !strings.Contains(out, job+": succeeded") {
			t.Errorf("no end of %s in %s", job, out)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
