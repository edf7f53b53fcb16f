package export_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// numbers are the parameters of exports whose files are numbered as one set: the number of this
// export's first file, and of all files.
type numbers struct{ First, Total int }

// newNumbered returns an export that names its files by their numbers in a set of several exports.
// These numbers are known only after all exports were counted.
func newNumbered(bucket *blob.Bucket, most int) *export.Export[numbers] {
	of := func(f export.File) (n numbers) {
		if err := json.Unmarshal(f.Params, &n); err != nil {
			panic(err)
		}
		n.First += f.Index
		return n
	}
	return must(export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], n numbers) (line, error) {
		if e.Value.N < 0 || n != (numbers{}) { // the function must get the parameters of the start, and not of Write
			return line{}, mapper.Skip
		}
		return line(e.Value), nil
	}, &export.Options{Format: export.JSON, FileBytes: 26_000, MaxFiles: most,
		Name: func(f export.File) string { return fmt.Sprintf("%d-of-%d.json", of(f).First, of(f).Total) },
		Wrap: func(f export.File) (head, tail string) {
			return fmt.Sprintf(`{"shard":%d,"of":%d,"records":[`, of(f).First, of(f).Total), "]}"
		},
	}))
}

func startHeld(t *testing.T, e *mapper.Engine, x *export.Export[numbers], id string, hold bool) *export.Run {
	t.Helper()
	run, err := x.Start(t.Context(), e, mapper.Query{Kind: "Order"}, numbers{}, &export.StartOptions{Hold: hold,
		StartOptions: mapper.StartOptions{ID: id, PageSize: 50}})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestHold counts the files of a held export, and then writes them with the numbers that follow
// from the count. Some of the calls in between fail.
func TestHold(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newNumbered(bucket, 10)
	mappertest.Run(t, x.Mappers(), &mappertest.Options{Seed: testflag.Seed(t)},
		func(t *testing.T, w *mappertest.Env) {
			putOrders(t, w.Client)
			run := startHeld(t, w.Engine, x, "held", true)
			w.ResumeFaults()
			_, err := run.Jobs()[0].Wait(t.Context())
			w.PauseFaults()
			if err != nil {
				t.Fatal(err)
			}
			n, err := x.Count(t.Context(), run)
			if err != nil || n < 2 {
				t.Fatalf("%d files, %v, want several", n, err)
			}
			for _, name := range list(t, bucket) {
				if !strings.Contains(name, "/_parts/") {
					t.Errorf("%s is there, before anybody has called Write", name)
				}
			}
			agreed := numbers{7, 7 + n}
			w.ResumeFaults()
			for range 5 { // calls and answers get lost, so repeat the call
				if err = x.Write(t.Context(), run, 0, agreed); err == nil {
					break
				}
			}
			w.PauseFaults()
			if err != nil {
				t.Fatal(err)
			}
			m, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Files) != n || m.Records != orders-leftOut {
				t.Errorf("%d files with %d records, want %d with %d", len(m.Files), m.Records, n, orders-leftOut)
			}
			for i, f := range m.Files {
				text, err := bucket.ReadAll(t.Context(), "held/"+f.Name)
				if err != nil {
					t.Fatal(err)
				}
				name, head := fmt.Sprintf("%d-of-%d.json", 7+i, 7+n), fmt.Sprintf(`{"shard":%d,"of":%d,`, 7+i, 7+n)
				if path.Base(f.Name) != name || !strings.HasPrefix(string(text), head) {
					t.Errorf("file %d is %s, and starts with %.30q, want %s and %q", i, f.Name, text, name, head)
				}
			}
			if err := x.Write(t.Context(), run, 0, agreed); err != nil {
				t.Errorf("a second Write with the same arguments: %v", err)
			}
			if again, err := x.Count(t.Context(), run); err != nil || again != n {
				t.Errorf("%d files when they are written, %v, want %d", again, err, n)
			}
			err = x.Write(t.Context(), run, 0, numbers{8, 8 + n})
			if !errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("a Write with other numbers: %v, want ErrIDTaken", err)
			}
		})
}

// TestHoldRefused makes wrong calls of Count and Write. Each must return an error with the reason,
// and write nothing.
func TestHoldRefused(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newNumbered(bucket, 2)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		run := startHeld(t, w.Engine, x, "held", true)
		if n, err := x.Count(t.Context(), run); err == nil || !strings.Contains(err.Error(), "Options.MaxFiles is 2") {
			t.Errorf("%d files, %v, want an error that names the maximum", n, err)
		}
		for files, want := range map[int]string{-1: "want 0 to 2", 3: "want 0 to 2", 1: "Options.FileBytes is 26000"} {
			if err := x.Write(t.Context(), run, files, numbers{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a Write of %d files: %v, want an error with %q", files, err, want)
			}
		}
		if err := run.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := x.Write(t.Context(), run, 2, numbers{})
		if err == nil || !strings.Contains(err.Error(), "was discarded") {
			t.Errorf("a Write of a run that was discarded: %v", err)
		}
		if _, err := x.Count(t.Context(), run); err == nil || !strings.Contains(err.Error(), "was discarded") {
			t.Errorf("the count of a run that was discarded: %v", err)
		}
		all := list(t, bucket)
		if len(all) != 1 || path.Base(all[0]) != export.ManifestName { // only the mark of the discarded run remains
			t.Errorf("in the bucket are %q, want the mark of Discard", all)
		}
		free := startHeld(t, w.Engine, x, "free", false)
		if _, err := free.Jobs()[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Count(t.Context(), free); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "Hold") {
			t.Errorf("the count of an export that is not held: %v, want ErrWrongState", err)
		}
		if err := x.Write(t.Context(), free, 0, numbers{}); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "Hold") {
			t.Errorf("a Write of an export that is not held: %v, want ErrWrongState", err)
		}
	})
}

// TestHoldTwoPlans makes two concurrent calls of Write with different numbers. The second call
// records its plan when files of the first one's plan are already written. The export must fail,
// and its error must say what to do.
func TestHoldTwoPlans(t *testing.T) {
	s := testbucket.New()
	x := newNumbered(s.Open(), 10)
	var open atomic.Bool
	ask := func(_, body string) int {
		if strings.Contains(body, `"held-join"`) && !open.Load() {
			return 0
		}
		return 1
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		putOrders(t, client)
		run := startHeld(t, e.Engine, x, "held", true)
		n, err := x.Count(t.Context(), run)
		if err == nil {
			err = x.Write(t.Context(), run, n, numbers{0, n})
		}
		if err != nil {
			t.Fatal(err)
		}
		var files []datastore.PropertyList
		keys, err := client.GetAll(t.Context(), datastore.NewQuery("ScattermapFile"), &files)
		if err != nil || len(keys) != n {
			t.Fatalf("%d files are planned, %v, want %d", len(keys), err, n)
		}
		for i := range files[0] {
			if files[0][i].Name == "Plan" {
				files[0][i].Value = "another"
			}
		}
		if _, err := client.Put(t.Context(), keys[0], &files[0]); err != nil {
			t.Fatal(err)
		}
		open.Store(true)
		if _, err = run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "has failed on 1 entities") {
			t.Errorf("an export of two plans: %v, want an error that counts the files", err)
		}
		all, _, err := run.Jobs()[1].FailuresPage(t.Context(), "")
		if text := fmt.Sprint(all, err); !strings.Contains(text, "was planned by another Export.Write") {
			t.Errorf("the failures are %s, want one that says so", text)
		}
		for name, text := range s.Now() {
			if strings.Contains(string(text), `"shard":0,`) {
				t.Errorf("%s was written of the other plan", name)
			}
		}
	})
}

// TestHoldLateWrite stops a call of Write just after it has checked that its run is not discarded.
// Then it discards the run. The call must fail, and only the mark of the discarded run may remain.
func TestHoldLateWrite(t *testing.T) {
	s := testbucket.New()
	x := newNumbered(s.Open(), 10)
	var armed atomic.Bool
	var seen, discarded chan bool
	s.Hook = func(c *testbucket.Call) error {
		err := c.Effect()
		if c.Op == "read" && path.Base(c.Key) == export.ManifestName && armed.CompareAndSwap(true, false) {
			close(seen)
			<-discarded
		}
		return err
	}
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		seen, discarded = make(chan bool), make(chan bool)
		putOrders(t, w.Client)
		run := startHeld(t, w.Engine, x, "held", true)
		n, err := x.Count(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		armed.Store(true)
		wrote := make(chan error)
		go func() { wrote <- x.Write(t.Context(), run, n, numbers{0, n}) }()
		<-seen
		if err := run.Discard(t.Context()); err != nil {
			t.Errorf("discard: %v", err)
		}
		close(discarded)
		if err := <-wrote; err == nil || !strings.Contains(err.Error(), "was discarded") {
			t.Errorf("a Write that wakes after a Discard: %v, want an error", err)
		}
		time.Sleep(24 * time.Hour)
		if all := s.Names(); len(all) != 1 || path.Base(all[0]) != export.ManifestName {
			t.Errorf("in the bucket are %q, want the mark of Discard", all)
		}
	})
}
