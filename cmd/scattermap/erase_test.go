package main

import (
	"context"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// TestStartErase starts a job that erases a namespace, for which the command needs no kind. The
// command asks for a confirmation.
func TestStartErase(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(context.Context, string, []byte) error { return nil }
	newService(t, 1, prebuilt.Erase(prebuilt.EraseOptions{Key: key, Keep: keep}))
	for _, test := range []struct {
		typed, line, want string
	}{
		{"n", "start erase --namespace gone --execute", "nothing was done"},
		{"", "start erase --namespace gone --execute --yes", `the namespace "gone" has no entities`},
		{"", "start erase --namespace gone", `the namespace "gone" has no entities`},
		{"n", "start erase --params '{\"property\":\"tenant\",\"value\":\"acme\"}' --execute",
			"in all kinds and namespaces and in the records of all jobs?"},
		{"n", "start erase --namespaces a,b --params '{\"property\":\"tenant\",\"value\":\"acme\"}' --execute",
			"in all kinds of the namespaces [\"a\" \"b\"] and in the records of all jobs?"},
		{"", "start count", "--kind is empty"},
		{"", "start count --kind Account --retain 7d", "at least 8 days"},
	} {
		out, errs, code := command(t, test.typed, words(test.line)...)
		if code == 0 || !strings.Contains(errs, test.want) {
			t.Errorf("%s: %s%s (%d), want %q", test.line, out, errs, code, test.want)
		}
	}
	out, errs, code := command(t, "", words("start count --kind Account --retain 30d --id kept --watch")...)
	if code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	if out, errs, _ := command(t, "", "describe", "kept"); !strings.Contains(out, "kept until") {
		t.Errorf("%s%s", out, errs)
	}
}

// TestRetentionFlag parses valid and invalid values of the flag for the time that a job's records
// are kept.
func TestRetentionFlag(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"8d": mapper.MinRetain, "30d": 30 * 24 * time.Hour, "240h": 240 * time.Hour, "always": mapper.RetainAlways,
		"7d": 0, "": 0, "d": 0, "-9d": 0, "100001d": 0, "soon": 0, "0": 0,
	} {
		var r retention
		if err := r.Set(text); (err == nil) != (want != 0) || time.Duration(r) != want {
			t.Errorf("%q: %v, %v, want %v", text, time.Duration(r), err, want)
		}
	}
}
