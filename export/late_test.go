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
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// A late is a hook of a test bucket. It holds back the first of the calls that match, and tells its
// caller that the call was lost. Until letGo is called, further calls that match are lost.
type late struct {
	op    string
	match func(key string) bool

	mu     sync.Mutex
	effect func() error
	let    bool
}

func (l *late) hook(c *testbucket.Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Op != l.op || !l.match(c.Key) || l.let {
		l.mu.Unlock()
		defer l.mu.Lock()
		return c.Effect()
	}
	if l.effect == nil {
		l.effect = c.Effect
	}
	return errLost
}

// held waits until a call is held back.
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
	told  bool // whether the call is made after the run's success is decided
}

// lateCalls are the kinds of bucket calls that an export makes, each with the stage that makes it.
var lateCalls = map[string]lateCall{
	"a part":            {"write", func(key string) bool { return strings.Contains(key, "/_parts/") }, 0, false},
	"a file":            {"write", func(key string) bool { return strings.Contains(key, "/00001-of-") }, 1, false},
	"a part's deletion": {"delete", func(key string) bool { return strings.Contains(key, "/_parts/") }, 2, false},
	"the outcome": {"write", func(key string) bool {
		return path.Base(key) == "manifest.json" && key != folder+"/manifest.json"
	}, 2, false},
	"a leftover's removal": {"delete", func(key string) bool { return strings.HasSuffix(key, "/half.tmp") }, 2, false},
	"the mark of success":  {"write", func(key string) bool { return path.Base(key) == "_SUCCESS" }, 2, true},
	"the copy":             {"write", func(key string) bool { return key == folder+"/manifest.json" }, 2, true},
}

// TestLateAfterDiscard holds back a call of an export, and aborts and discards the export. Then
// another export succeeds in the same folder, before or after the late call takes effect. The
// second export's manifest must stay true, and readers must get it. If the call is one that follows
// the first export's success, that export can't be discarded, and its manifest must stay true, too.
func TestLateAfterDiscard(t *testing.T) {
	for what, c := range lateCalls {
		t.Run(what+" after the next", func(t *testing.T) { testLateAfterDiscard(t, c, false) })
		t.Run(what+" before the next", func(t *testing.T) { testLateAfterDiscard(t, c, true) })
	}
}

func testLateAfterDiscard(t *testing.T, c lateCall, before bool) {
	s, l := testbucket.New(), &late{op: c.op, match: c.match}
	s.Hook = leaving(s, l.hook)
	bucket := s.Open()
	x := newExport(bucket, &export.Options{Files: 2})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		first, err := startIn(t, w, x, "first", folder)
		if err != nil {
			t.Fatal(err)
		}
		l.held(t)
		if err := first.Jobs()[c.stage].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // until the commits of pages that still run are refused
		l.letGo()
		discard := func() {
			t.Helper()
			switch err := first.Discard(t.Context()); {
			case c.told && (!errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "it has succeeded")):
				t.Errorf("%v, want ErrState, as it has succeeded", err)
			case !c.told && err != nil:
				t.Fatal(err)
			}
		}
		discard()
		takeEffect := func() {
			t.Helper()
			if err := l.effect(); err != nil && !errors.Is(err, testbucket.ErrIsThere) &&
				!errors.Is(err, testbucket.ErrNotThere) {
				t.Fatal(err)
			}
		}
		if before {
			takeEffect()
		}
		earlier, err := first.Wait(t.Context())
		if (err == nil) != c.told {
			t.Errorf("%+v, %v; it has succeeded: %t", earlier, err, c.told)
		}
		if m, err := export.ReadManifest(t.Context(), bucket, folder); (err == nil) != c.told {
			t.Errorf("the manifest in the folder is %+v, %v; the first export has succeeded: %t", m, err, c.told)
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
		discard() // now Discard finds the late blob
		checkLast(t, s, second, m)
		if c.told {
			checkFiles(t, s, folder, earlier)
			return
		}
		for _, name := range s.Names() {
			if own := path.Dir(name) == folder || path.Base(name) == "manifest.json"; !own &&
				!strings.HasPrefix(name, folder+"/"+path.Dir(m.Files[0].Name)) {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// TestLateInRun holds back a call of an export until the export has succeeded. After the late call,
// the manifest must still be true.
func TestLateInRun(t *testing.T) {
	for what, c := range lateCalls {
		t.Run(what, func(t *testing.T) {
			s, l := testbucket.New(), &late{op: c.op, match: c.match}
			s.Hook = leaving(s, func(c *testbucket.Call) error {
				err := l.hook(c)
				if errors.Is(err, errLost) {
					l.letGo() // so that only one call is held back
				}
				return err
			})
			x := newExport(s.Open(), &export.Options{Files: 2})
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				run, err := startIn(t, w, x, "orders", folder)
				if err != nil {
					t.Fatal(err)
				}
				l.held(t)
				m, err := run.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := l.effect(); err != nil && !errors.Is(err, testbucket.ErrIsThere) &&
					!errors.Is(err, testbucket.ErrNotThere) {
					t.Fatal(err)
				}
				checkLast(t, s, run, m)
				for _, name := range s.Names() {
					if strings.HasSuffix(name, ".tmp") {
						t.Errorf("%s is left", name)
					}
				}
			})
		})
	}
}

// leaving returns a hook that leaves an incomplete blob in the folder of a run when the run writes
// a part, like a killed process.
func leaving(s *testbucket.Bucket, hook func(*testbucket.Call) error) func(*testbucket.Call) error {
	return func(c *testbucket.Call) error {
		if run, _, part := strings.Cut(c.Key, "/_parts/"); part && c.Op == "write" {
			s.Put(run+"/half.tmp", []byte("half"))
		}
		return hook(c)
	}
}

// checkLast checks that the manifest of a run is true and unchanged, and that readers of its folder
// get it.
func checkLast(t *testing.T, s *testbucket.Bucket, run *export.Run, m *export.Manifest) {
	t.Helper()
	checkFiles(t, s, run.Folder, m)
	again, err := run.Wait(t.Context())
	if err != nil || fmt.Sprint(again.Files) != fmt.Sprint(m.Files) {
		t.Errorf("the manifest of %s is %+v, %v, and was %+v", run.ID, again, err, m)
	}
	last, err := export.ReadManifest(t.Context(), s.Open(), run.Folder)
	if err != nil || last.Run != m.Run {
		t.Errorf("the manifest of the folder is %+v, %v, want the manifest of %s", last, err, run.ID)
	}
}

// TestLateListings delays what listings of the bucket show by an hour. An export must still delete
// its parts. A second Discard must delete the blobs that the first one has not seen. A listing that
// still shows deleted blobs must do no harm.
func TestLateListings(t *testing.T) {
	s := testbucket.New()
	s.Lag = func(string) time.Duration { return time.Hour }
	x := newExport(s.Open(), &export.Options{Files: 2})
	var failing atomic.Bool
	s.Hook = func(c *testbucket.Call) error {
		if failing.Load() && c.Op == "write" && strings.Contains(c.Key, "/00001-of-") {
			return errLost
		}
		return c.Effect()
	}
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
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
		if all := s.Names(); len(all) != 5 {
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
		if all := s.Names(); len(all) != 6 {
			t.Errorf("in the bucket are %q, want what was there before, and the mark of the second run", all)
		}
		checkLast(t, s, first, m)
	})
}
