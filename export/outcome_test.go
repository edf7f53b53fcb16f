package export

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
)

const (
	runA = "0123456789abcdefghijklmnoa"
	runB = "0123456789abcdefghijklmnob"
)

var ended = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func manifestText(t *testing.T, m *Manifest) []byte {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestOutcome decides about a run while others decide, too, and while calls fail. The first
// decision counts, and each caller learns it or gets an error.
func TestOutcome(t *testing.T) {
	here := place{folder: "f", run: runA}
	success, mark := &Manifest{Run: runA, Export: "e"}, here.discarded("e")
	type bucket = *testbucket.Bucket
	lost := errors.New("the connection was lost")
	for name, c := range map[string]struct {
		hook      func(b bucket, c *testbucket.Call) error
		discarded bool
		err       string
	}{
		"alone": {func(_ bucket, c *testbucket.Call) error { return c.Effect() }, false, ""},
		"another was first": {func(b bucket, c *testbucket.Call) error {
			if c.Op == "write" {
				b.Put(here.outcome(), manifestText(t, mark))
			}
			return c.Effect()
		}, true, ""},
		"another was first, and its answer is no manifest": {func(b bucket, c *testbucket.Call) error {
			if c.Op == "write" {
				b.Put(here.outcome(), []byte("{}"))
			}
			return c.Effect()
		}, false, "no manifest of an export"},
		"another was first, and is gone": {func(b bucket, c *testbucket.Call) error {
			if c.Op == "write" {
				return testbucket.ErrIsThere
			}
			return c.Effect()
		}, false, "was there, and is not"},
		"the write fails": {func(b bucket, c *testbucket.Call) error {
			if c.Op == "write" {
				return lost
			}
			return c.Effect()
		}, false, "the connection was lost"},
		"the read fails": {func(b bucket, c *testbucket.Call) error {
			if c.Op == "read" {
				return lost
			}
			return c.Effect()
		}, false, "the connection was lost"},
	} {
		b := testbucket.New()
		b.Hook = func(call *testbucket.Call) error { return c.hook(b, call) }
		got, err := here.decide(t.Context(), b.Open(), success)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %+v, %v, want an error with %q", name, got, err, c.err)
			}
		case err != nil || got.Discarded != c.discarded || got.Run != runA:
			t.Errorf("%s: %+v, %v, want discarded %t", name, got, err, c.discarded)
		}
	}
	bad := &Manifest{Run: runA, Query: mapper.Query{Filters: []mapper.Filter{{Property: "a", Value: make(chan int)}}}}
	if written, err := writeOnce(t.Context(), testbucket.New().Open(), "m", bad); err == nil || written {
		t.Errorf("a query that has no JSON is written: %t", written)
	}
}

// TestDiscardedRun checks that only the mark of a discarded run stops it.
func TestDiscardedRun(t *testing.T) {
	here := place{folder: "f", run: runA}
	b := testbucket.New()
	stops := func(want string) {
		t.Helper()
		err := here.wasDiscarded(t.Context(), b.Open())
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	stops("")
	b.Put(here.outcome(), manifestText(t, &Manifest{Run: runA}))
	stops("")
	b.Put(here.outcome(), manifestText(t, here.discarded("e")))
	stops("was discarded")
	b.Put(here.outcome(), []byte("no JSON"))
	stops("invalid character")
}

// TestDiscardedBlobs deletes everything that a run has written, whatever its name, but the mark.
func TestDiscardedBlobs(t *testing.T) {
	here, b := place{folder: "f", run: runA}, testbucket.New()
	for _, name := range []string{"_STARTED", "run-" + runB + "/1", "1.jsonl", "_parts/00/x", ManifestName} {
		b.Put(here.path(name), []byte("x"))
	}
	b.Put("f/1.jsonl", []byte("x"))
	r := &Run{Folder: "f", bucket: b.Open(), place: here}
	if err := r.deleteBlobs(t.Context()); err != nil || len(b.Names()) != 2 {
		t.Errorf("left are %q, %v, want the mark, and what is not in the run's folder", b.Names(), err)
	}
}

// TestLastManifest reads the manifest of the last export in folders that others have written to,
// too.
func TestLastManifest(t *testing.T) {
	at := func(run string, m Manifest) (string, []byte) {
		return place{folder: "f", run: run}.outcome(), manifestText(t, &m)
	}
	of := func(run string, after time.Duration) Manifest { return Manifest{Run: run, Ended: ended.Add(after)} }
	for name, c := range map[string]struct {
		put  func(b *testbucket.Bucket)
		want string // the run, or the error
	}{
		"nothing":  {func(*testbucket.Bucket) {}, "there is no such blob"},
		"one":      {func(b *testbucket.Bucket) { b.Put(at(runA, of(runA, 0))) }, runA},
		"last":     {func(b *testbucket.Bucket) { b.Put(at(runA, of(runA, 1))); b.Put(at(runB, of(runB, 0))) }, runA},
		"as early": {func(b *testbucket.Bucket) { b.Put(at(runA, of(runA, 0))); b.Put(at(runB, of(runB, 0))) }, runB},
		"copied from another run": {func(b *testbucket.Bucket) {
			b.Put(at(runA, of(runA, 0)))
			b.Put(at(runB, Manifest{Run: runA, Ended: ended.Add(1), Records: 1}))
		}, runA},
		"a file with the name of a run": {func(b *testbucket.Bucket) {
			b.Put(at(runA, of(runA, 0)))
			b.Put("f/run-"+runB, []byte("x"))
			b.Put(at("x", of("x", 1)))
		}, runA},
		"discarded": {func(b *testbucket.Bucket) {
			b.Put(at(runA, *(place{folder: "f", run: runA}).discarded("e")))
		}, "there is no such blob"},
		"a copy, and the run has a mark": {func(b *testbucket.Bucket) {
			b.Put(at(runA, *(place{folder: "f", run: runA}).discarded("e")))
			b.Put("f/manifest.json", manifestText(t, &Manifest{Run: runA, Ended: ended}))
		}, "all exports there were discarded"},
		"an older build's, and the run has a mark": {func(b *testbucket.Bucket) {
			b.Put(at(runA, *(place{folder: "f", run: runA}).discarded("e")))
			b.Put("f/manifest.json", manifestText(t, &Manifest{Run: runA}))
		}, "all exports there were discarded"},
		"an older build's": {func(b *testbucket.Bucket) {
			b.Put("f/manifest.json", manifestText(t, &Manifest{Run: runA}))
		}, runA},
		"a copy whose run was deleted": {func(b *testbucket.Bucket) {
			b.Put("f/manifest.json", manifestText(t, &Manifest{Run: runA, Ended: ended}))
		}, "there is no such blob"},
		"damaged": {func(b *testbucket.Bucket) {
			b.Put("f/manifest.json", []byte("{}"))
		}, "no manifest of an export"},
		"damaged in run": {func(b *testbucket.Bucket) {
			b.Put(at(runA, Manifest{}))
		}, "no manifest of an export"},
	} {
		b := testbucket.New()
		c.put(b)
		m, err := ReadManifest(t.Context(), b.Open(), "f")
		if err == nil && (m.Run != c.want || m.Records != 0) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %q", name, m, err, c.want)
		}
		if missing := gcerrors.Code(err) == gcerrors.NotFound; missing != (c.want == "there is no such blob") {
			t.Errorf("%s: that there is none: %t, %v", name, missing, err)
		}
	}
	failing := testbucket.New()
	failing.Put(at(runA, of(runA, 0)))
	for _, op := range []string{"read", "list"} {
		failing.Hook = func(c *testbucket.Call) error {
			if c.Op == op {
				return errors.New("the connection was lost")
			}
			return c.Effect()
		}
		if m, err := ReadManifest(t.Context(), failing.Open(), "f"); err == nil ||
			!strings.Contains(err.Error(), "the connection was lost") {
			t.Errorf("a %s fails: %+v, %v", op, m, err)
		}
	}
}

// TestClaims drops only the claim of its own run, as an older build has written it.
func TestClaims(t *testing.T) {
	for text, left := range map[string]bool{
		`{"export":"e","run":"` + runA + `"}`: false, `{"export":"e","run":"` + runB + `"}`: true, "": true,
	} {
		b := testbucket.New()
		if text != "" {
			b.Put("f/_STARTED", []byte(text))
		}
		before := len(b.Names())
		if err := dropClaim(t.Context(), b.Open(), place{"f", runA, true}); err != nil ||
			left != (len(b.Names()) == before) {
			t.Errorf("%s: left are %q, %v", text, b.Names(), err)
		}
	}
	b := testbucket.New()
	b.Put("f/_STARTED", []byte("no JSON"))
	if err := dropClaim(t.Context(), b.Open(), place{"f", runA, true}); err == nil ||
		!strings.Contains(err.Error(), `whose the folder "f" is`) {
		t.Errorf("%v, want an error that names the folder", err)
	}
}

// TestOutcomeOfOlderBuild reads the outcome of a run that an older build has started. The manifest
// in the export's folder is its outcome only if it names this run, and if there is no other.
func TestOutcomeOfOlderBuild(t *testing.T) {
	p := place{folder: "f", run: runA, direct: true}
	for run, want := range map[string]bool{runA: true, runB: false} {
		b := testbucket.New()
		b.Put("f/manifest.json", manifestText(t, &Manifest{Run: run}))
		if m, err := p.decided(t.Context(), b.Open()); err != nil || (m != nil) != want {
			t.Errorf("the manifest of run %s: %+v, %v", run, m, err)
		}
		if m, err := (place{folder: "f", run: run}).decided(t.Context(), b.Open()); m != nil || err != nil {
			t.Errorf("the outcome of a run of this build, whose manifest was deleted: %+v, %v", m, err)
		}
	}
	b := testbucket.New()
	b.Put("f/manifest.json", manifestText(t, &Manifest{Run: runA}))
	if m, err := p.decide(t.Context(), b.Open(), p.discarded("e")); err != nil || m.Discarded || len(b.Names()) != 1 {
		t.Errorf("a discard after the success of an older build: %+v, %v, and the bucket has %q", m, err, b.Names())
	}
	lost := errors.New("the connection was lost")
	b.Hook = func(c *testbucket.Call) error {
		if c.Key == p.outcome() {
			return lost
		}
		return c.Effect()
	}
	if m, err := p.decided(t.Context(), b.Open()); !errors.Is(err, lost) {
		t.Errorf("the read of the mark fails: %+v, %v", m, err)
	}
	b.Hook = nil
	b.Put(p.outcome(), manifestText(t, p.discarded("e")))
	if m, err := p.decided(t.Context(), b.Open()); err != nil || !m.Discarded {
		t.Errorf("the outcome of a discarded run is %+v, %v", m, err)
	}
}
