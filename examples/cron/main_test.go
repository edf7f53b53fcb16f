package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// cron runs the command, and returns its result.
func cron(t *testing.T, args ...string) (r result, err error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		return r, err
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func TestNights(t *testing.T) {
	for _, overlap := range overlaps {
		sizes := []int{1, 1100} // one page of 500, and several for several workers
		if nightly.Is() {
			sizes = []int{1, 100, 2000}
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", overlap, n), func(t *testing.T) {
				r, err := cron(t, "-overlap", overlap, "-subscriptions", fmt.Sprint(n), "-orders", fmt.Sprint(n/10),
					"-nights", "4")
				if err != nil {
					t.Fatal(err)
				}
				runs, second := 4, map[string]string{"skip": "skipped", "queue": "queued",
					"replace": "started"}[overlap]
				if overlap == "skip" {
					runs = 3
				}
				if n == 1 && overlap != "skip" {
					runs = r.Runs // the first run may have ended before the second one came to replace it
				}
				if r.Runs != runs || r.Calls != 4*calls ||
					fmt.Sprint(r.Became) != fmt.Sprintf("[started %s started started]", second) || r.Refused != 1 {
					t.Errorf("%+v, want %d runs", r, runs)
				}
			})
		}
	}
}

// TestGoogle runs the command on Google's classic emulator if it is installed, and at night also on
// the Firestore emulator.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			if name == "firestore" {
				nightly.Leave(t)
			}
			t.Parallel()
			_, err := cron(t, "-datastore", name, "-subscriptions", fmt.Sprint(testflag.Size(t, 0, 100, 300)),
				"-orders", "60", "-nights", "2")
			if errors.Is(err, google.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWidth checks that no line of the help and of typical outputs is wider than a terminal.
func TestWidth(t *testing.T) {
	var out strings.Builder
	if _, err := parse([]string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, overlap := range overlaps {
		c, err := parse([]string{"-overlap", overlap, "-subscriptions", "3", "-orders", "10", "-nights", "2"},
			io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), c, &out); err != nil {
			t.Fatal(err)
		}
	}
	largest := result{Nights: 100, Calls: 500, Runs: 100, Renewed: 333_333_333, Countries: 8, Refused: 1}
	for range largest.Nights {
		largest.Became = append(largest.Became, string(mapper.TickSkipped))
	}
	o := &largest.Orders
	o.Orders, o.Requests, o.Dropped, o.Refused = 100_000, 199_999, 99_999,
		[]string{errRewriting.Error(), errRelieved.Error()}
	o.Rewrite.Orders, o.Rewrite.Changed = 60_000, 60_000
	o.Rewrite.Reads, o.Rewrite.Writes, o.Rewrite.Dollars = 199_999, 99_999, 12.3456
	if err := largest.print(&out, false); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "    \t", "        ")
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-subscriptions 0": "-subscriptions",
		"-orders -1":       "-orders",
		"-nights 101":      "-nights",
		"-overlap wait":    `-overlap is "wait"`,
		"-workers 0":       "-workers",
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
