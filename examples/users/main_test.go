package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator"
)

// users runs the command, and returns its result decoded.
func users(t *testing.T, args ...string) (r result, err error) {
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

// agree checks that all forms did the same.
func agree(t *testing.T, r result) {
	t.Helper()
	if len(r.Outcomes) != len(forms) {
		t.Fatalf("%+v", r)
	}
	for i, o := range r.Outcomes {
		if o.Form != forms[i].name || o.Checked != r.Active || o.Invalid != r.Outcomes[0].Invalid || o.Seconds <= 0 {
			t.Errorf("%+v of %d active users", o, r.Active)
		}
	}
}

func TestForms(t *testing.T) {
	for _, n := range []int{0, 1, 100, 2000} {
		r, err := users(t, "-users", fmt.Sprint(n), "-latency", "0")
		if err != nil {
			t.Fatal(err)
		}
		agree(t, r)
	}
}

// TestAdaptiveIsFastest runs the example as it is: times are compared within the run.
func TestAdaptiveIsFastest(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out what waits for latencies")
	}
	t.Parallel()
	r, err := users(t)
	if err != nil {
		t.Fatal(err)
	}
	agree(t, r)
	for _, o := range r.Outcomes[:2] {
		if o.Ratio <= 1 {
			t.Errorf("%s takes %.2f s, and adaptive %.2f s", o.Form, o.Seconds, r.Outcomes[2].Seconds)
		}
	}
}

// TestGoogle runs the example on Google's emulators, where they are installed.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := users(t, "-datastore", name, "-users", "1200")
			if errors.Is(err, emulator.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			agree(t, r)
		})
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-users -1":        "-users",
		"-page 0":          "-page",
		"-workers 5001":    "-workers",
		"-latency -1s":     "-latency",
		"-datastore cloud": `-datastore is "cloud"`,
		"-colour":          "-colour",
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
