package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// credit runs the command, and returns the result in the last line of its output.
func credit(t *testing.T, args ...string) (bank.Result, error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, io.Discard); err != nil {
		return bank.Result{}, err
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var r bank.Result
	return r, json.Unmarshal([]byte(lines[len(lines)-1]), &r)
}

func check(t *testing.T, n int64, r bank.Result, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if r.State != mapper.StateSucceeded || r.Entities != n || r.Processed != n || r.SumAfter-r.SumBefore != 10*n ||
		r.Failures != 0 {
		t.Errorf("%d accounts: %+v", n, r)
	}
}

// TestEveryKeyingAndSize runs the job with every kind of keys, over kinds of very different sizes.
func TestEveryKeyingAndSize(t *testing.T) {
	large := int64(testflag.Size(t, 2000, 1600, 20_000)) // four pages of 500
	for _, keys := range keyings {
		for _, n := range []int64{0, 1, 499, 500, 501, large} {
			t.Run(fmt.Sprint(keys, " ", n), func(t *testing.T) {
				r, err := credit(t, "-keys", keys, "-entities", fmt.Sprint(n))
				check(t, n, r, err)
				if r.Reads < n || r.Writes < n {
					t.Errorf("%d reads and %d writes would be billed for %d accounts", r.Reads, r.Writes, n)
				}
			})
		}
	}
}

// TestGoogle runs the job on Google's emulators if they are installed. At night, it runs it on
// both, and with all forms of keys.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			if name == "google" {
				nightly.Leave(t)
			}
			t.Parallel()
			n, page, some := int64(500), "100", []string{"mixed"}
			if nightly.Is() {
				n, page, some = 3000, "500", keyings
			} else {
				t.Log("left out: .ci/nightly runs it with all forms of keys")
			}
			for _, keys := range some {
				r, err := credit(t, "-datastore", name, "-keys", keys, "-entities", fmt.Sprint(n), "-page", page)
				if errors.Is(err, google.ErrNotInstalled) {
					t.Skipf("left out: %v", err)
				}
				check(t, n, r, err)
				if r.Depth < 1 || r.Tasks < 2 {
					t.Errorf("no fan-out over %s: %+v", keys, r)
				}
			}
		})
	}
}

func TestFlags(t *testing.T) {
	var help strings.Builder
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(help.String(), "-entities N") {
		t.Errorf("-help: %v\n%s", err, help.String())
	}
	for args, want := range map[string]string{
		"-entities -1":       "-entities has to be in [0, 100000000], it is -1",
		"-page 0":            "-page has to be in [1, 1000], it is 0",
		"-page 1001":         "-page",
		"-workers 0":         "-workers",
		"-amount 1000000001": "-amount has to be in",
		"-workers 5001":      "-workers",
		"-keys colours":      `-keys is "colours", it has to be one of names, ids, mixed, uuid, ancestors`,
		"-datastore cloud":   `-datastore is "cloud"`,
		"more":               `unexpected argument "more"`,
		"-entities many":     "invalid value",
		"-unknown":           "flag provided but not defined",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}

// TestSettings runs the command with other values of the flags that change the job.
func TestSettings(t *testing.T) {
	r, err := credit(t, "-entities", "200", "-page", "1", "-workers", "1", "-amount", "-3")
	if err != nil || r.SumAfter-r.SumBefore != -600 || r.Pages != 200 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSummary checks what the command prints for people.
func TestSummary(t *testing.T) {
	c, err := parse([]string{"-entities", "1200"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out, bar bytes.Buffer
	if err := run(t.Context(), c, &out, &bar); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Writing 1,200 accounts", "The job succeeded.", "processed 1,200, failures 0",
		"sum before", "greatest depth", "entity reads"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary does not say %q:\n%s", want, &out)
		}
	}
	if !strings.Contains(bar.String(), "accounts/s") || !strings.Contains(bar.String(), "100%") {
		t.Errorf("the bar shows no rate or end: %q", bar.String())
	}
}

// TestManyRanges follows a job with more ranges than a status reads. While the job runs, its status
// is an estimate. The bar must show this.
func TestManyRanges(t *testing.T) {
	r, err := credit(t, "-entities", "8000", "-page", "10")
	check(t, 8000, r, err)
	if r.Pages < 800 {
		t.Errorf("%d pages of 10 entities, want 800", r.Pages)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000",
		1234567: "1,234,567"} {
		if got := bank.Grouped(n); got != want {
			t.Errorf("%d is written %s, want %s", n, got, want)
		}
	}
}

// TestDashboard runs the command with its dashboard. The dashboard must show the job, and stay
// until the command is interrupted.
func TestDashboard(t *testing.T) {
	c, err := parse([]string{"-dashboard", "-entities", "500"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, c, io.Discard, out)
		out.Close()
	}()
	address := ""
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "Dashboard: "); ok {
			address = at
		}
		if strings.Contains(lines.Text(), "stays until") {
			break
		}
	}
	resp, err := http.Get(address + "job?id=spring-credit")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "succeeded") {
		t.Errorf("%d %s, %v", resp.StatusCode, page, err)
	}
	interrupt()
	go func() { _, _ = io.Copy(io.Discard, said) }()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
