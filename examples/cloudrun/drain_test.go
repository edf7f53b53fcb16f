package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
)

// notedIn is the environment variable with the path of a file. The mapper below writes a line to it
// for each call of its function.
const notedIn = "CLOUDRUN_TEST_CALLS"

// noted adds 10 to accounts, and takes a while for each. For each call it writes the process ID and
// the account to a file.
var noted = mapper.Update("noted", func(_ context.Context, a *mapper.Entity[bank.Account], _ mapper.NoParams) error {
	f, err := os.OpenFile(os.Getenv(notedIn), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	time.Sleep(10 * time.Millisecond)
	if _, err := fmt.Fprintf(f, "%d %s\n", os.Getpid(), a.Key.Name); err != nil {
		return err
	}
	a.Value.Balance += 10
	return nil
})

// TestShutdown ends the processes of a job by SIGTERM while they work on pages. Each process must
// exit with code 0. No page may be interrupted, so the function is called exactly once for each
// account.
func TestShutdown(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out the ends of processes")
	}
	t.Parallel()
	const n, concurrent, shutdowns = 6000, 12, 8
	file := filepath.Join(t.TempDir(), "calls")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	calls := func() (lines []string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	f, client, engine := newCloudWith(t, e, e.DatastoreAddr(), n, concurrent, []string{notedIn + "=" + file}, noted)
	job, err := noted.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "noted"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range shutdowns {
		lines, died := calls(), f.died()
		member, pid := -1, ""
		// Find a process that works on pages, to end it next.
		for before := len(lines); len(lines) < before+100 || member < 0; lines = calls() {
			pid, _, _ = strings.Cut(lines[len(lines)-1], " ")
			member = f.member(pid)
			time.Sleep(10 * time.Millisecond)
		}
		before := len(lines)
		f.signal(member, syscall.SIGTERM)
		for f.died() == died {
			time.Sleep(10 * time.Millisecond)
		}
		after := 0
		for _, line := range calls()[before:] {
			if strings.HasPrefix(line, pid+" ") {
				after++
			}
		}
		if after > concurrent*300 { // longer than a page of 3 s on each worker
			t.Errorf("shutdown %d: the process went on for %d calls", i, after)
		}
		t.Logf("shutdown %d: %d calls after it", i, after)
	}
	if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateRunning {
		t.Errorf("the job has ended too early to show anything: %+v, %v", s, err)
	}
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != n {
		t.Errorf("%+v, %v", s, err)
	}
	f.mu.Lock()
	codes := f.codes
	f.mu.Unlock()
	for _, code := range codes {
		if code != 0 {
			t.Errorf("a process ended with code %d", code)
		}
	}
	if len(codes) != shutdowns {
		t.Errorf("%d processes ended", len(codes))
	}
	times := make(map[string]int)
	for _, line := range calls() {
		_, name, _ := strings.Cut(line, " ")
		times[name]++
	}
	for name, calls := range times {
		if calls != 1 {
			t.Errorf("the function was called %d times for %s", calls, name)
		}
	}
	if right, err := client.Count(t.Context(), datastore.NewQuery("Account").FilterField("Balance", "=",
		10)); err != nil || right != n || len(times) != n {
		t.Errorf("%d of %d accounts are right, and the function was called for %d; %v", right, n, len(times), err)
	}
}

// member returns the member with a process ID, or -1.
func (f *fleet) member(pid string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.IndexFunc(f.members, func(m *member) bool { return strconv.Itoa(m.process.Process.Pid) == pid })
}
