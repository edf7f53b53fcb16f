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
	"github.com/scattermap/scattermap/mapper"
)

// built returns the service's program.
func built(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "cloudrun")
	if out, err := exec.Command("go", "build", "-o", binary, program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// TestLocal is the contract of the deployed service, on this machine: over real sockets, with tokens, and with processes
// that are ended in the middle, or killed.
func TestLocal(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves crashes of processes out")
	}
	binary := built(t)
	for _, args := range []string{"", "-term 1", "-term 3 -processes 3", "-kill 1", "-term 1 -kill 2"} {
		t.Run(args, func(t *testing.T) {
			const n = 40000
			c, err := parse(append(strings.Fields(args), "-json", "-log", "-entities", fmt.Sprint(n)), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			c.program = binary
			var out bytes.Buffer
			if err := run(t.Context(), c, &out, t.Output()); err != nil {
				t.Fatal(err)
			}
			var r result
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v in %s", err, out.Bytes())
			}
			if r.State != mapper.Succeeded || r.Entities != n || r.Processed != n || r.Failures != 0 || r.SumAfter-r.SumBefore != 10*n {
				t.Errorf("%+v", r)
			}
			if c.kill == 0 && r.Redone != 0 {
				t.Errorf("%d accounts were redone, and no process was killed", r.Redone)
			}
			t.Logf("%+v", r)
		})
	}
}

func TestFlags(t *testing.T) {
	var help strings.Builder
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-term N") {
		t.Errorf("-help: %v\n%s", err, help.String())
	}
	for args, want := range map[string]string{
		"-entities 0": "-entities has to be in [1, 10000000]", "-processes 21": "-processes", "-workers 0": "-workers",
		"-term -1": "-term", "-kill 21": "-kill", "-amount 1000000001": "-amount", "more": "unexpected argument",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}

// BenchmarkService prints how long a process of the service takes from its start until it serves, how long a job takes
// from its start until its first task runs, and how much memory the process holds before it has run one.
func BenchmarkService(b *testing.B) {
	binary := built(b)
	var serves, task, memory float64
	for b.Loop() {
		func() {
			s, err := start(b.Context(), config{processes: 0, workers: 8, program: binary}, io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			if err := bank.WriteAccounts(b.Context(), s.client, 1000, accountKey); err != nil {
				b.Fatal(err)
			}
			begun := time.Now()
			if err := s.add(b.Context(), binary); err != nil {
				b.Fatal(err)
			}
			serves += time.Since(begun).Seconds()
			time.Sleep(time.Second) // it is idle
			memory += residentMB(b, s.processes[0].Process.Pid)
			begun = time.Now()
			started := make(chan error, 1)
			go func() {
				started <- s.call(b.Context(), http.MethodPost, "/jobs", `{"mapper": "add-credit", "id": "bench", "query": {"kind": "Account"}, "params": {"Amount": 1}}`, nil)
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

// residentMB returns the memory that a process holds.
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
