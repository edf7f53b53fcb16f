package export_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// A late is a hook of a store that has the first of some calls take effect later, although its caller is told that it
// was lost. Until it is let go, all others of them are lost.
type late struct {
	op    string
	match func(key string) bool

	mu     sync.Mutex
	effect func() error
	let    bool
}

func (l *late) hook(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.op != l.op || !l.match(c.key) || l.let {
		l.mu.Unlock()
		defer l.mu.Lock()
		return c.effect()
	}
	if l.effect == nil {
		l.effect = c.effect
	}
	return errLost
}

// held waits until a call is late.
func (l *late) held(t *testing.T) {
	t.Helper()
	for range 100_000 {
		l.mu.Lock()
		held := l.effect != nil
		l.mu.Unlock()
		if held {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no call is late")
}

func (l *late) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.let = true
}

type lateCall struct {
	op    string
	match func(key string) bool
	stage int
}

// lateCalls are those of an export, by what they do, and the stage that makes them.
var lateCalls = map[string]lateCall{
	"a part":            {"write", func(key string) bool { return strings.Contains(key, "/_parts/") }, 0},
	"a file":            {"write", func(key string) bool { return strings.Contains(key, "/00001-of-") }, 1},
	"a part's deletion": {"delete", func(key string) bool { return strings.Contains(key, "/_parts/") }, 2},
	"the outcome": {"write", func(key string) bool {
		return path.Base(key) == "manifest.json" && key != folder+"/manifest.json"
	}, 2},
	"the mark of success":  {"write", func(key string) bool { return path.Base(key) == "_SUCCESS" }, 2},
	"the manifest":         {"write", func(key string) bool { return key == folder+"/manifest.json" }, 2},
	"the second manifest":  {"write", func(key string) bool { return key == folder+"/manifest-2.json" }, 2},
	"a leftover's removal": {"delete", func(key string) bool { return strings.HasSuffix(key, "/half.tmp") }, 2},
}

// TestLateAfterDiscard has a call of an export take effect after it was aborted and discarded, and another one has
// succeeded in its folder: that one's manifest stays true, and is the one that is read.
func TestLateAfterDiscard(t *testing.T) {
	for what, c := range lateCalls {
		t.Run(what+" after the next", func(t *testing.T) { testLateAfterDiscard(t, what, c, false) })
		t.Run(what+" before the next", func(t *testing.T) { testLateAfterDiscard(t, what, c, true) })
	}
}

func testLateAfterDiscard(t *testing.T, what string, c lateCall, before bool) {
	s, l := newStore(), &late{op: c.op, match: c.match}
	s.hook = leaving(s, l.hook)
	bucket := s.open()
	x := newExport(bucket, &export.Options{Files: 2})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
		putOrders(t, w.Client)
		begunBefore(t, w, x, what)
		first, err := startIn(t, w, x, "first", folder)
		if err != nil {
			t.Fatal(err)
		}
		l.held(t)
		if err := first.Jobs()[c.stage].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // until what is under way is refused
		l.letGo()
		if err := first.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		takeEffect := func() {
			t.Helper()
			if err := l.effect(); err != nil && !errors.Is(err, errIsThere) && !errors.Is(err, errNotThere) {
				t.Fatal(err)
			}
		}
		if before {
			takeEffect()
		}
		if _, err := first.Wait(t.Context()); err == nil {
			t.Error("it was discarded, and has a manifest")
		}
		if m, err := export.ReadManifest(t.Context(), bucket, folder); err == nil && m.Export == first.ID {
			t.Errorf("it was discarded, and the manifest in the folder is %+v", m)
		}
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Order", "late", nil), &order{N: orders,
			Name: "late"}); err != nil {
			t.Fatal(err)
		}
		second, err := startIn(t, w, x, "second", folder)
		if err != nil {
			t.Fatal(err)
		}
		m, err := second.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !before {
			takeEffect()
		}
		checkLast(t, s, second, m)
		if err := first.Discard(t.Context()); err != nil { // which finds what came late
			t.Errorf("once more: %v", err)
		}
		checkLast(t, s, second, m)
		for _, name := range s.names() {
			if own := path.Dir(name) == folder || path.Base(name) == "manifest.json"; !own &&
				!strings.HasPrefix(name, folder+"/"+path.Dir(m.Files[0].Name)) &&
				what != "the second manifest" {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// TestLateInRun has a call of an export that succeeds take effect after that: its manifest stays true.
func TestLateInRun(t *testing.T) {
	for what, c := range lateCalls {
		t.Run(what, func(t *testing.T) {
			s, l := newStore(), &late{op: c.op, match: c.match}
			s.hook = leaving(s, func(c *call) error {
				err := l.hook(c)
				if errors.Is(err, errLost) {
					l.letGo() // only one is late
				}
				return err
			})
			x := newExport(s.open(), &export.Options{Files: 2})
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
				putOrders(t, w.Client)
				begunBefore(t, w, x, what)
				run, err := startIn(t, w, x, "orders", folder)
				if err != nil {
					t.Fatal(err)
				}
				l.held(t)
				m, err := run.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := l.effect(); err != nil && !errors.Is(err, errIsThere) && !errors.Is(err, errNotThere) {
					t.Fatal(err)
				}
				checkLast(t, s, run, m)
				for _, name := range s.names() {
					if strings.HasSuffix(name, ".tmp") {
						t.Errorf("%s is left", name)
					}
				}
			})
		})
	}
}

// begunBefore has an export succeed before, if the late call is one of a folder that has a manifest.
func begunBefore(t *testing.T, w *mappertest.World, x *export.Export[mapper.None], what string) {
	t.Helper()
	if what != "the second manifest" {
		return
	}
	run, err := startIn(t, w, x, "before", folder)
	if err == nil {
		_, err = run.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// leaving has a process that was killed leave what it has written halfway in the folder of each run, when that writes a
// part.
func leaving(s *store, hook func(*call) error) func(*call) error {
	return func(c *call) error {
		if run, _, part := strings.Cut(c.key, "/_parts/"); part && c.op == "write" {
			s.put(run+"/half.tmp", []byte("half"))
		}
		return hook(c)
	}
}

// checkLast checks that the manifest of a run is true, is still what it was, and is the last one of its folder.
func checkLast(t *testing.T, s *store, run *export.Run, m *export.Manifest) {
	t.Helper()
	checkFiles(t, s, run.Folder, m)
	again, err := run.Wait(t.Context())
	if err != nil || fmt.Sprint(again.Files) != fmt.Sprint(m.Files) {
		t.Errorf("the manifest of %s is %+v, %v, and was %+v", run.ID, again, err, m)
	}
	last, err := export.ReadManifest(t.Context(), s.open(), run.Folder)
	if err != nil || last.Run != m.Run {
		t.Errorf("the manifest of the folder is %+v, %v, want that of %s", last, err, run.ID)
	}
}

// TestLateListings has a bucket list what it had an hour ago: an export deletes its parts all the same, and what a
// Discard has not seen, a later one deletes. A listing that still shows what was deleted does no harm.
func TestLateListings(t *testing.T) {
	s := newStore()
	s.lag = func(string) time.Duration { return time.Hour }
	x := newExport(s.open(), &export.Options{Files: 2})
	var failing atomic.Bool
	s.hook = func(c *call) error {
		if failing.Load() && c.op == "write" && strings.Contains(c.key, "/00001-of-") {
			return errLost
		}
		return c.effect()
	}
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
		putOrders(t, w.Client)
		first, err := startIn(t, w, x, "first", folder)
		if err != nil {
			t.Fatal(err)
		}
		m, err := first.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkLast(t, s, first, m)
		if all := s.names(); len(all) != 5 {
			t.Errorf("in the bucket are %q, want two files, the mark of success and two manifests", all)
		}
		failing.Store(true)
		second, err := startIn(t, w, x, "second", folder)
		if err != nil {
			t.Fatal(err)
		}
		for {
			if status, err := second.Jobs()[1].Status(t.Context()); err == nil && status.Error != "" {
				break
			}
			time.Sleep(time.Second)
		}
		if err := second.Jobs()[1].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := second.Discard(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Hour)
		}
		if all := s.names(); len(all) != 6 {
			t.Errorf("in the bucket are %q, want what was there before, and the mark of the second run", all)
		}
		checkLast(t, s, first, m)
	})
}
