package export_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// startIn starts an export into a folder, without an ID if it is empty.
func startIn(t *testing.T, w *mappertest.World, x *export.Export[mapper.None], id, folder string) (*export.Run, error) {
	t.Helper()
	return x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.None{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{ID: id, PageSize: 50}, Folder: folder})
}

// wantRefused checks that a start was refused, by an error that says what to do.
func wantRefused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, mapper.ErrArguments) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error that has %q", err, want)
	}
}

// TestFoldersApart has no export begin in, above or below the folder of another one, whether that runs or has succeeded: its end deletes
// what its manifest does not name.
func TestFoldersApart(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newExport(bucket, nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
		putOrders(t, w.Client)
		run, err := startIn(t, w, x, "first", "a/b")
		if err != nil {
			t.Fatal(err)
		}
		refused := func(ended bool) {
			t.Helper()
			_, err := startIn(t, w, x, "above", "a")
			wantRefused(t, err, `"a" is not empty`)
			_, err = startIn(t, w, x, "below", "a/b/c/d")
			wantRefused(t, err, `"a/b/c/d" is in that of another export, "a/b"`)
			_, err = startIn(t, w, x, "same", "a/b")
			wantRefused(t, err, map[bool]string{false: `"a/b" is that of export "first"`, true: `"a/b" is not empty`}[ended])
		}
		refused(false)
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused(true)
		beside, err := startIn(t, w, x, "beside", "a/bc")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := beside.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Files {
			if there, err := bucket.Exists(t.Context(), "a/b/"+f.Name); err != nil || !there {
				t.Errorf("%s is there: %t, %v", f.Name, there, err)
			}
		}
		for _, name := range list(t, bucket) {
			if strings.HasSuffix(name, export.StartedName) {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// TestStartsAtOnce has many starts at once into a folder, and into one above it: with one ID they are one export, and
// without at most one begins. What was begun is whole.
func TestStartsAtOnce(t *testing.T) {
	for _, id := range []string{"orders", ""} {
		t.Run(fmt.Sprintf("ID %q", id), func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			x := newExport(bucket, nil)
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
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
				begun := 0
				for i, run := range runs {
					if errs[i] != nil {
						if id != "" {
							t.Errorf("start %d: %v", i, errs[i])
						}
						continue
					}
					begun++
					m, err := run.Wait(t.Context())
					if err != nil || m.Export != run.ID || m.Records != orders-24 {
						t.Errorf("%+v, %v", m, err)
					}
				}
				if id == "" && begun > 1 {
					t.Errorf("%d have begun", begun)
				}
			})
		})
	}
}

// TestUsedID has an ID of which later stages are left be refused: the export would write nothing, as these have succeeded.
func TestUsedID(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newExport(bucket, nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
		putOrders(t, w.Client)
		run, err := startIn(t, w, x, "daily", "1")
		if err == nil {
			_, err = run.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, job := range run.Jobs() {
			if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{Job: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Hour) // until its record is gone
			if _, err := startIn(t, w, x, "daily", "2"); i < 2 {
				wantRefused(t, err, "of an earlier export is there still")
			} else if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestDiscard has the folder of an export that was aborted be free once it is discarded, and not before.
func TestDiscard(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.None) (line, error) {
		time.Sleep(10 * time.Millisecond)
		if e.Value.N < 0 {
			return line{}, mapper.Skip
		}
		return line(e.Value), nil
	}, nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
		putOrders(t, w.Client)
		ctx := t.Context()
		if _, err := startIn(t, w, x, "old", folder); err != nil {
			t.Fatal(err)
		}
		run, err := x.Find(ctx, w.Engine, "old")
		if err != nil || run.Folder != folder {
			t.Fatalf("%+v, %v", run, err)
		}
		if err := run.Discard(ctx); !errors.Is(err, mapper.ErrState) {
			t.Errorf("%v, want ErrState while it runs", err)
		}
		for len(list(t, bucket)) < 5 {
			time.Sleep(10 * time.Millisecond)
		}
		if err := run.Jobs()[0].Abort(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // until the pages under way are refused
		_, err = startIn(t, w, x, "new", folder)
		wantRefused(t, err, `that of export "old"`)
		if err := run.Discard(ctx); err != nil {
			t.Fatal(err)
		}
		if left := list(t, bucket); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
		if run, err = startIn(t, w, x, "new", folder); err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, bucket, m)
		checkTidy(t, w.Client, bucket, m)
		if err := run.Discard(ctx); !errors.Is(err, mapper.ErrState) {
			t.Errorf("%v, want ErrState once it has succeeded", err)
		}
	})
}

// TestRetryTooLate has entities be retried that an export has done without: they are in no file, and that is said.
func TestRetryTooLate(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	broken := true
	x := export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.None) (line, error) {
		if broken && e.Value.N == 3 {
			return line{}, mapper.Permanent(errors.New("three"))
		}
		return line(e.Value), nil
	}, &export.Options{AllowFailures: true})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.World) {
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
		if err := run.Jobs()[0].Retry(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "start another one") {
			t.Errorf("%v, want an error that says what to do", err)
		}
		checkTidy(t, w.Client, bucket, m)
	})
}
