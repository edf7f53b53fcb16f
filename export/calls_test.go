package export_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestSlowBucket runs exports to a bucket whose reads and deletions take a second. The parts of a
// file must be read in parallel, and deleted in parallel. An export of few parts must list the
// bucket only once.
func TestSlowBucket(t *testing.T) {
	for _, c := range []struct{ page, lists int }{{50, 1}, {1, 257}} {
		t.Run(fmt.Sprint("pages of ", c.page), func(t *testing.T) {
			s := testbucket.New()
			var mu sync.Mutex
			calls, now, most := make(map[string]int), make(map[string]int), make(map[string]int)
			s.Hook = func(c *testbucket.Call) error {
				if strings.Contains(c.Key, "/_parts/") || c.Op == "list" {
					mu.Lock()
					calls[c.Op]++
					now[c.Op]++
					most[c.Op] = max(most[c.Op], now[c.Op])
					mu.Unlock()
					if c.Op == "read" || c.Op == "delete" || c.Op == "list" {
						time.Sleep(time.Second)
					}
					mu.Lock()
					now[c.Op]--
					mu.Unlock()
				}
				return c.Effect()
			}
			bucket := s.Open()
			x := newExport(bucket, &export.Options{Files: 2})
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
					&export.StartOptions{Folder: folder,
						StartOptions: mapper.StartOptions{ID: "orders", PageSize: c.page}})
				if err != nil {
					t.Fatal(err)
				}
				m, err := run.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				status, err := run.Jobs()[0].Status(t.Context())
				// a file of lines without compression has the bytes of its parts
				if err != nil || status.Counters["export/bytes"] != m.Bytes {
					t.Errorf("%d bytes are counted in parts, %v, want %d, the bytes of the files",
						status.Counters["export/bytes"], err, m.Bytes)
				}
				mu.Lock()
				parts := calls["write"]
				if calls["list"] != c.lists || calls["read"] != parts || calls["delete"] != parts {
					t.Errorf("the calls are %v, want %d listings, and %d reads and deletions", calls, c.lists, parts)
				}
				for op, limit := range map[string]int{"read": 64, "delete": 64, "list": 16} {
					if most[op] > 2*limit { // two files may be processed at once
						t.Errorf("%d calls of %s were made at once, want at most %d", most[op], op, 2*limit)
					}
				}
				mu.Unlock()
				checkRecords(t, bucket, m)
				checkTidy(t, w.Client, bucket, m)
				for _, job := range run.Jobs() {
					status, err := job.Status(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					most := time.Duration(parts)*time.Second/40 + time.Second
					if took := status.Ended.Sub(status.Created); took > most {
						t.Errorf("job %s took %v for %d parts, want at most %v", job.ID, took, parts, most)
					}
				}
			})
		})
	}
}

// TestLargeFileIsThere loses the answer to the first write of each file. The file is so large that
// the next attempt fails before all of the file is written, as in Cloud Storage above 16 MiB. The
// export must take the existing file.
func TestLargeFileIsThere(t *testing.T) {
	s := testbucket.New()
	s.Chunk = 100
	var mu sync.Mutex
	lost := make(map[string]bool)
	s.Hook = func(c *testbucket.Call) error {
		mu.Lock()
		defer mu.Unlock()
		err := c.Effect()
		if c.Op == "write" && strings.HasSuffix(c.Key, ".jsonl") && !strings.Contains(c.Key, "/_parts/") &&
			!lost[c.Key] {
			lost[c.Key] = true
			return errLost
		}
		return err
	}
	bucket := s.Open()
	x := newExport(bucket, &export.Options{Files: 2})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
			&export.StartOptions{Folder: folder, StartOptions: mapper.StartOptions{ID: "orders", PageSize: 50}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(lost) != 2 {
			t.Errorf("the answers for %v were lost, want two files", lost)
		}
		checkRecords(t, bucket, m)
		checkTidy(t, w.Client, bucket, m)
	})
}

// TestEachBucketCallFails lets one call of the bucket fail, before or after it takes effect, and
// each call in its turn. The caller repeats its own calls. The export must succeed, and its files
// must be as the manifest says.
func TestEachBucketCallFails(t *testing.T) {
	testflag.Sequential(t)
	step := testflag.Size(t, 40, 16, 1)
	for _, after := range []bool{false, true} {
		for k, reached := int(testflag.Seed(t)%uint64(step)), true; reached && !t.Failed(); k += step {
			s, failed := testbucket.New(), ""
			s.Chunk = k % 2
			var mu sync.Mutex
			calls, checking := 0, false
			s.Hook = func(c *testbucket.Call) error {
				mu.Lock()
				now := calls == k && !checking
				if calls++; now {
					failed = c.Op + " " + c.Key
				}
				mu.Unlock()
				switch {
				case !now:
					return c.Effect()
				case after:
					_ = c.Effect()
				}
				return errLost
			}
			x := newExport(s.Open(), &export.Options{Files: 2})
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				run, err := startIn(t, w, x, "orders", folder)
				if err != nil {
					run, err = startIn(t, w, x, "orders", folder)
				}
				var m *export.Manifest
				if err == nil {
					if m, err = run.Wait(t.Context()); errors.Is(err, errLost) {
						m, err = run.Wait(t.Context())
					}
				}
				if err != nil {
					t.Fatalf("call %d, %s, fails: %v", k, failed, err)
				}
				mu.Lock()
				checking = true // the test's own calls do not fail
				mu.Unlock()
				checkFiles(t, s, folder, m)
				checkTidy(t, w.Client, s.Open(), m)
			})
			reached = failed != ""
		}
	}
}
