package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// built returns the path of the service's program, built once.
func built(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "cloudrun")
	if out, err := exec.Command("go", "build", "-o", binary, program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

func TestMain(m *testing.M) {
	testflag.AtOnce(5) // the cases of TestLocal mostly wait
	os.Exit(m.Run())
}

// TestLocal runs the service on this machine as Cloud Run would: over real sockets, with tokens,
// and with starts and ends of instances.
func TestLocal(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves crashes of processes out")
	}
	binary := built(t)
	for name, c := range map[string]struct {
		args  string
		night bool // whether only .ci/nightly runs this case
	}{
		"from none and back":     {"", true},
		"one request each":       {"-concurrency 1 -max-instances 8", true},
		"always with a CPU":      {"-cpu always -min-instances 2 -latency 0", true},
		"told to end":            {"-term 3 -max-instances 3", false},
		"killed":                 {"-term 1 -kill 2", true},
		"two revisions":          {"-rollout", true},
		"two revisions, killed":  {"-rollout -kill 2", false},
		"paused until none runs": {"-pause -max-instances 2 -concurrency 2", false}, // six pages in turn
		"refused":                {"-max-instances 2 -concurrency 4 -workers 24 -wait 50ms", false},
		"timed out":              {"-max-instances 3 -concurrency 1 -timeout 1s -latency 40ms", false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.night {
				nightly.Leave(t)
			}
			if !pauses && !strings.Contains(c.args, "-cpu") {
				t.Skip("left out: no process can be stopped on this system")
			}
			t.Parallel()
			n := testflag.Size(t, 0, 12_000, 30_000) // each instance still has several pages
			// Calls are slow, so that the job lasts until all has happened that the case says.
			args := fmt.Sprint("-json -log -idle 500ms -latency 80ms -entities ", n, " ", c.args)
			c, err := parse(strings.Fields(args), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			c.programs = []string{binary}
			r := ran(t, c)
			all := int64(n)
			if r.State != mapper.StateSucceeded || r.Entities != all || r.Processed != all || r.Failures != 0 ||
				r.SumAfter-r.SumBefore != 10*all {
				t.Errorf("%+v", r)
			}
			if c.kill+r.TimedOut == 0 && r.Redone != 0 {
				t.Errorf("%d accounts were redone, and no process was killed, and no request cut off", r.Redone)
			}
			t.Logf("%+v", r)
		})
	}
}

// ran runs the command with a configuration, and returns its result.
func ran(t *testing.T, c config) (r result) {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	return r
}

func TestFlags(t *testing.T) {
	var help strings.Builder
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "-term N") {
		t.Errorf("-help: %v\n%s", err, help.String())
	}
	for args, want := range map[string]string{
		"-entities 0": "-entities has to be in [1, 10000000]", "-max-instances 21": "-max-instances",
		"-workers -1": "-workers",
		"-term -1":    "-term", "-kill 21": "-kill", "-amount 1000000001": "-amount", "more": "unexpected argument",
		"-min-instances 5":        "-min-instances is 5, it has to be at most -max-instances",
		"-concurrency 0":          "-concurrency",
		"-cpu never":              "-cpu is \"never\"",
		"-pause -min-instances 1": "set -min-instances=0", "-timeout 1ms": "-timeout", "-idle 0": "-idle",
		"-wait -1s": "-wait",
		"-cold 2m":  "-cold", "-latency 2m": "-latency",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}

// TestObserver checks that the observer finds statuses which can't be true.
func TestObserver(t *testing.T) {
	status := func(state mapper.State, processed int64) *mapper.Status {
		return &mapper.Status{State: state, Processed: processed}
	}
	estimate := func(processed int64) *mapper.Status {
		return &mapper.Status{State: mapper.StateRunning, Processed: processed, Estimated: true}
	}
	for name, c := range map[string]struct {
		paused bool
		called int
		all    []*mapper.Status
		want   string
	}{
		"all is well": {called: 9, all: []*mapper.Status{status(mapper.StateRunning, 0), status(mapper.StateRunning, 5),
			status(mapper.StateSucceeded, 9)}},
		"an estimate": {called: 9, all: []*mapper.Status{estimate(20), estimate(4), status(mapper.StateSucceeded, 9)}},
		"too many": {called: 9, all: []*mapper.Status{status(mapper.StateRunning, 10)},
			want: "10 accounts are said to be processed"},
		"fewer": {called: 9, all: []*mapper.Status{status(mapper.StateRunning, 5), status(mapper.StateRunning, 4)},
			want: "and now 4"},
		"runs again": {called: 9, all: []*mapper.Status{status(mapper.StateSucceeded, 9),
			status(mapper.StateRunning, 9)},
			want: "was succeeded"},
		"paused":            {paused: true, all: []*mapper.Status{status(mapper.StatePaused, 0)}},
		"paused by none":    {all: []*mapper.Status{status(mapper.StatePaused, 0)}, want: "is paused"},
		"runs all the same": {paused: true, all: []*mapper.Status{status(mapper.StateRunning, 0)}, want: "is running"},
	} {
		o, err := observer{paused: c.paused}, error(nil)
		for _, s := range c.all {
			err = errors.Join(err, o.see(s, c.called))
		}
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	half := bank.Tally{Accounts: 10, Wrong: 6}
	if err := settled(status(mapper.StatePaused, 4), config{amount: 10}, half); err != nil {
		t.Error(err)
	}
	if err := settled(status(mapper.StatePaused, 5), config{amount: 10}, half); err == nil {
		t.Error("a status has one account too many")
	}
}

// BenchmarkService measures a process of the service: the time from its start until it answers
// requests, and its memory before its first task. It also measures the time from a job's start
// until its first task runs.
func BenchmarkService(b *testing.B) {
	binary := built(b)
	var serves, task, memory float64
	for b.Loop() {
		func() {
			c, err := parse([]string{"-max-instances=1", "-cpu=always", "-latency=0", "-cold=0"}, io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			c.programs = []string{binary}
			s, err := start(b.Context(), c, func(string, ...any) {}, io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			if err := bank.WriteAccounts(b.Context(), s.client, 1000, accountKey); err != nil {
				b.Fatal(err)
			}
			begun := time.Now()
			if err := s.call(b.Context(), http.MethodGet, "/jobs", "", nil); err != nil { // needs a new instance
				b.Fatal(err)
			}
			serves += time.Since(begun).Seconds()
			time.Sleep(time.Second) // until the process is idle
			memory += residentMB(b, s.revisions[0].instances[0].machine.(*process).cmd.Process.Pid)
			begun = time.Now()
			started := make(chan error, 1)
			go func() {
				started <- s.call(b.Context(), http.MethodPost, "/jobs",
					`{"mapper": "add-credit", "id": "bench", "query": {"kind": "Account"}, "params": {"Amount": 1}}`,
					nil)
			}()
			for s.called() == 0 {
				time.Sleep(time.Millisecond)
			}
			task += time.Since(begun).Seconds()
			if err := <-started; err != nil {
				b.Fatal(err)
			}
		}()
	}
	n := float64(b.N)
	b.ReportMetric(1000*serves/n, "ms-to-serve")
	b.ReportMetric(1000*task/n, "ms-to-first-task")
	b.ReportMetric(memory/n, "MB-idle")
}

// residentMB returns the resident memory of a process in MB.
func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skipf("left out: the memory of a process is read from /proc: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb * 1024 / 1e6
		}
	}
	b.Fatal("no VmRSS in /proc")
	return 0
}
