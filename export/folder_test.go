package export_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// startIn starts an export into a folder. The ID may be empty.
func startIn(
	t *testing.T, w *mappertest.Env, x *export.Export[mapper.NoParams], id, folder string,
) (*export.Run, error) {
	t.Helper()
	return x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{ID: id, PageSize: 50}, Folder: folder})
}

// wantRefused checks that a start has returned an error that contains want.
func wantRefused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error that has %q", err, want)
	}
}

// TestFoldersApart runs several exports at the same time in one folder, and in folders above and
// below it. None may touch the files of another.
func TestFoldersApart(t *testing.T) {
	store := testbucket.New()
	bucket := store.Open()
	x := newExport(bucket, &export.Options{Files: 2})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		store.Put("a/b/of somebody else", []byte("x"))
		runs := make(map[string]*export.Run)
		for id, in := range map[string]string{"first": "a/b", "same": "a/b", "above": "a", "below": "a/b/c/d"} {
			run, err := startIn(t, w, x, id, in)
			if err != nil {
				t.Fatal(err)
			}
			runs[id] = run
		}
		want, last := []string{"a/b/of somebody else"}, new(export.Manifest)
		for id, run := range runs {
			m, err := run.Wait(t.Context())
			if err != nil || m.Export != id || m.Records != orders-leftOut || len(m.Files) != 2 {
				t.Fatalf("%+v, %v", m, err)
			}
			of := run.Folder + "/" + path.Dir(m.Files[0].Name)
			want = append(want, of+"/manifest.json", of+"/_SUCCESS")
			for _, f := range m.Files {
				want = append(want, run.Folder+"/"+f.Name)
			}
			if id != "same" { // two exports have this folder, and the copy of the manifest is of only one
				want = append(want, run.Folder+"/manifest.json")
			}
			if run.Folder == "a/b" && (m.Ended.After(last.Ended) || m.Ended.Equal(last.Ended) && m.Run > last.Run) {
				last = m
			}
		}
		for _, run := range runs { // compare when all have ended
			m, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			checkFiles(t, store, run.Folder, m)
		}
		slices.Sort(want)
		if got := store.Names(); !slices.Equal(got, want) {
			t.Errorf("in the bucket are %q, want %q", got, want)
		}
		m, err := export.ReadManifest(t.Context(), bucket, "a/b")
		if err != nil || m.Run != last.Run {
			t.Errorf("the manifest in the folder is %+v, %v, want the last one", m, err)
		}
	})
}

// TestOldestDeleted deletes the oldest exports of a folder, as a lifecycle rule of a bucket does.
// The other exports and a new one must be readable, and Wait must return them.
func TestOldestDeleted(t *testing.T) {
	s := testbucket.New()
	bucket := s.Open()
	x := newExport(bucket, &export.Options{Files: 2})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		var runs []*export.Run
		var manifests []*export.Manifest
		next := func() {
			t.Helper()
			run, err := startIn(t, w, x, fmt.Sprint("night-", len(runs)), folder)
			if err != nil {
				t.Fatal(err)
			}
			m, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so that the next run starts at a later time
			runs, manifests = append(runs, run), append(manifests, m)
			checkLast(t, s, run, m)
		}
		drop := func(m *export.Manifest, fixed bool) {
			for _, name := range s.Names() {
				if strings.HasPrefix(name, folder+"/"+path.Dir(m.Files[0].Name)+"/") ||
					fixed && path.Dir(name) == folder {
					s.Put(name, nil)
				}
			}
		}
		for range 4 {
			next()
		}
		drop(manifests[0], false) // the copy of its manifest remains, and names files that no longer exist
		checkLast(t, s, runs[3], manifests[3])
		drop(manifests[1], true)
		for _, i := range []int{2, 3} {
			m, err := runs[i].Wait(t.Context())
			if err != nil || m.Run != manifests[i].Run {
				t.Errorf("%+v, %v, want the manifest of before", m, err)
			}
		}
		checkLast(t, s, runs[3], manifests[3])
		next()
		for _, m := range manifests[2:] {
			checkFiles(t, s, folder, m)
			drop(m, false)
		}
		m, err := export.ReadManifest(t.Context(), bucket, folder)
		if gcerrors.Code(err) != gcerrors.NotFound {
			t.Errorf("%+v, %v, want that there is none, as all are deleted", m, err)
		}
		if err := runs[4].Discard(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("%v, want ErrState for one that has succeeded, and was deleted", err)
		}
	})
}

// checkFiles checks that the files of a manifest exist, with the sizes and hashes in it.
func checkFiles(t *testing.T, s *testbucket.Bucket, folder string, m *export.Manifest) {
	t.Helper()
	records := int64(0)
	for _, f := range m.Files {
		text := s.Get(folder + "/" + f.Name)
		sum := sha256.Sum256(text)
		if text == nil || hex.EncodeToString(sum[:]) != f.SHA256 || int64(len(text)) != f.Bytes ||
			int64(bytes.Count(text, []byte("\n"))) != f.Records {
			t.Errorf("%s of export %s has %d bytes and %d records, there %t; the manifest says %+v", f.Name, m.Export,
				len(text), bytes.Count(text, []byte("\n")), text != nil, f)
		}
		records += f.Records
	}
	if records != m.Records || m.Discarded {
		t.Errorf("the manifest says %d records, its files have %d: %+v", m.Records, records, m)
	}
}

// TestStartsAtOnce makes many concurrent starts into a folder, and into the folder above it. Starts
// with the same ID must return the same export.
func TestStartsAtOnce(t *testing.T) {
	for _, id := range []string{"orders", ""} {
		t.Run(fmt.Sprintf("ID %q", id), func(t *testing.T) {
			store := testbucket.New()
			x := newExport(store.Open(), nil)
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				runs, errs := make([]*export.Run, 8), make([]error, 8)
				var wg sync.WaitGroup
				for i := range runs {
					wg.Go(func() {
						in := folder
						if id == "" && i%2 == 1 {
							in = strings.Split(folder, "/")[0]
						}
						runs[i], errs[i] = startIn(t, w, x, id, in)
					})
				}
				wg.Wait()
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				seen := make(map[string]bool)
				for _, run := range runs {
					m, err := run.Wait(t.Context())
					if err != nil || m.Export != run.ID || m.Records != orders-leftOut {
						t.Fatalf("%+v, %v", m, err)
					}
					seen[m.Run] = true
					checkFiles(t, store, run.Folder, m)
				}
				if want := map[string]int{"": 8, "orders": 1}[id]; len(seen) != want {
					t.Errorf("%d runs, want %d", len(seen), want)
				}
			})
		})
	}
}

// TestRefusedStart checks that a start that returns an error writes nothing to the bucket.
func TestRefusedStart(t *testing.T) {
	store := testbucket.New()
	x := newExport(store.Open(), nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		start := func(kind, id, in string) error {
			_, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: kind}, mapper.NoParams{},
				&export.StartOptions{StartOptions: mapper.StartOptions{ID: id}, Folder: in})
			return err
		}
		if err := start("Order", "first", "first"); err != nil {
			t.Fatal(err)
		}
		run, err := x.Find(t.Context(), w.Engine, "first")
		if err == nil {
			_, err = run.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		before := store.Names()
		refused := func(err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			if after := store.Names(); !slices.Equal(after, before) {
				t.Errorf("after that the bucket has %q, and before %q", after, before)
			}
		}
		refused(start("Nothing", "second", "second"), mapper.ErrInvalidArgument)
		refused(start("Order", "first", "second"), mapper.ErrIDTaken)
		refused(start("Order", "first-join", "second"), mapper.ErrIDTaken)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = x.Start(ctx, w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
			&export.StartOptions{Folder: "second"})
		if err == nil {
			t.Error("an export was started although its context had ended")
		}
		refused(err, err)
		if err := run.Jobs()[0].CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		refused(start("Order", "first", "first"), mapper.ErrWrongState)
		if err := start("Order", "by-hand", "second"); err != nil {
			t.Error(err)
		}
	})
}

// TestUsedID checks that an ID is refused if the jobs of its later stages still exist. With these
// jobs, which have succeeded, the export would write nothing.
func TestUsedID(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newExport(bucket, nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		run, err := startIn(t, w, x, "daily", "1")
		if err == nil {
			_, err = run.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, job := range run.Jobs() {
			if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Hour) // until the record of the first job is deleted
			if _, err := startIn(t, w, x, "daily", "2"); i < 2 {
				wantRefused(t, err, "of an earlier export is there still")
			} else if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestDiscard discards an export after it was aborted. Only the mark of a discarded run may remain,
// and another export must succeed in the same folder.
func TestDiscard(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := must(export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		time.Sleep(10 * time.Millisecond)
		if e.Value.N < 0 {
			return line{}, mapper.Skip
		}
		return line(e.Value), nil
	}, nil))
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		ctx := t.Context()
		if _, err := startIn(t, w, x, "old", folder); err != nil {
			t.Fatal(err)
		}
		run, err := x.Find(ctx, w.Engine, "old")
		if err != nil || run.Folder != folder {
			t.Fatalf("%+v, %v", run, err)
		}
		if err := run.Discard(ctx); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("%v, want ErrState while it runs", err)
		}
		for len(list(t, bucket)) < 5 {
			time.Sleep(10 * time.Millisecond)
		}
		if err := run.Jobs()[0].Abort(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // after a minute, the commits of pages that still run are refused
		if err := run.Discard(ctx); err != nil {
			t.Fatal(err)
		}
		left := list(t, bucket)
		if len(left) != 1 || !strings.HasSuffix(left[0], "/manifest.json") || path.Dir(left[0]) == folder {
			t.Errorf("%q are left, want the mark of the run", left)
		}
		if _, err := export.ReadManifest(ctx, bucket, folder); gcerrors.Code(err) != gcerrors.NotFound {
			t.Errorf("the manifest: %v, want that there is none", err)
		}
		if run, err = startIn(t, w, x, "new", folder); err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, bucket, m)
		if err := bucket.Delete(ctx, left[0]); err != nil {
			t.Fatal(err)
		}
		checkTidy(t, w.Client, bucket, m)
		if err := run.Discard(ctx); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("%v, want ErrState once it has succeeded", err)
		}
	})
}

// TestRetryTooLate retries failed entities after the export has continued without them. They must
// be in no file, and an error must say so.
func TestRetryTooLate(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	broken := true
	x := must(export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		if broken && e.Value.N == 3 {
			return line{}, mapper.Permanent(errors.New("three"))
		}
		return line(e.Value), nil
	}, &export.Options{AllowFailures: true}))
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		run, err := startIn(t, w, x, "orders", folder)
		if err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		broken = false
		if err := run.Jobs()[0].Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "start another one") {
			t.Errorf("%v, want an error that says what to do", err)
		}
		checkTidy(t, w.Client, bucket, m)
	})
}

// TestRetryMeetsTheEnd retries an entity while the files are planned. If its part is recorded
// before the files are joined, the entity must be in a file. If it is recorded later, the entity
// must be in no file, and the manifest must count it as a failure. If an attempt has written the
// file but not recorded it, there must be no manifest, because the file's content is unknown.
func TestRetryMeetsTheEnd(t *testing.T) {
	for _, when := range []string{"before", "during", "after"} {
		t.Run(when+" the join", func(t *testing.T) { testRetryMeetsTheEnd(t, when) })
	}
}

func testRetryMeetsTheEnd(t *testing.T, when string) {
	s := testbucket.New()
	var mended, planned, parted, recorded, joining, wrote atomic.Bool
	until := func(b *atomic.Bool) {
		for !b.Load() {
			time.Sleep(time.Second)
		}
	}
	x := must(export.New("orders", s.Open(), func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		if e.Value.N == 3 && !mended.Load() {
			return line{}, mapper.Permanent(errors.New("three"))
		}
		return line(e.Value), nil
	}, &export.Options{Files: 2, AllowFailures: true}))
	var d *deployed
	s.Hook = func(c *testbucket.Call) error {
		switch {
		case c.Op == "read" && path.Base(c.Key) == "manifest.json" && planned.CompareAndSwap(false, true):
			mended.Store(true)
			if err := d.Job("orders").Retry(c, nil); err != nil {
				t.Error(err)
			}
			until(&parted)
		case c.Op == "write" && strings.Contains(c.Key, "/_parts/") && mended.Load():
			parted.Store(true)
			until(&recorded)
		case c.Op == "write" && strings.Contains(c.Key, "-of-") && !recorded.Load() && when == "during":
			defer wrote.Store(true)
			return errors.Join(errLost, c.Effect())
		}
		return c.Effect()
	}
	ask := func(_, body string) int {
		if strings.Contains(body, `"orders-join"`) && !joining.Load() {
			return 0
		}
		return 1
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		d = e
		putOrders(t, client)
		run := startOrders(t, e, x)
		await := func(job *mapper.Job, ended bool) {
			t.Helper()
			for range 1000 {
				if status, err := job.Status(t.Context()); err == nil && (!ended || status.State.Ended()) {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("job %s does not get on", job.ID)
		}
		await(run.Jobs()[1], false)
		failures := int64(1)
		switch when {
		case "during":
			joining.Store(true)
			until(&wrote)
			joining.Store(false)
			recorded.Store(true)
			await(run.Jobs()[0], true)
			joining.Store(true)
			m, err := run.Wait(t.Context())
			if err == nil {
				t.Errorf("%+v, want an error", m)
			}
			if m, err := export.ReadManifest(t.Context(), s.Open(), folder); err == nil {
				t.Errorf("%+v, want no manifest", m)
			}
			return
		case "after":
			joining.Store(true)
			await(run.Jobs()[2], true)
			recorded.Store(true)
			await(run.Jobs()[0], true)
		case "before":
			recorded.Store(true)
			await(run.Jobs()[0], true)
			joining.Store(true)
			failures = 0
		}
		m, err := run.Wait(t.Context())
		if err != nil || m.Failures != failures || m.Records != orders-failures {
			t.Fatalf("%+v, %v, want %d failures", m, err, failures)
		}
		checkLast(t, s, run, m)
		status, err := run.Jobs()[0].Status(t.Context())
		if err != nil || status.Processed != orders || status.Failures != 0 {
			t.Errorf("%+v, %v, want that the retry has processed the entity", status, err)
		}
	})
}
