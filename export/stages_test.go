package export_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestFailedDeletions lets the deletions of parts fail until the last job gives up. Then the export
// must have no manifest. A retry of the job must complete it; discarding the export instead must
// also work.
func TestFailedDeletions(t *testing.T) {
	for _, allow := range []bool{false, true} {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("failures allowed %t, discarded %t", allow, discard), func(t *testing.T) {
				s := testbucket.New()
				var mended atomic.Bool
				s.Hook = func(c *testbucket.Call) error {
					if c.Op == "delete" && strings.Contains(c.Key, "/_parts/") && !mended.Load() {
						return errLost
					}
					return c.Effect()
				}
				x := newExport(s.Open(), &export.Options{Files: 2, AllowFailures: allow})
				runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
					putFew(t, client, 40)
					run := startFew(t, d, x, false)
					time.Sleep(24 * time.Hour) // until the last job has given up; Wait would ask it all the time
					if m, err := run.Wait(t.Context()); err == nil ||
						!strings.Contains(err.Error(), "job orders-delete has failed on 2 entities") {
						t.Fatalf("%+v, %v, want an error that says what to do", m, err)
					}
					if m, err := export.ReadManifest(t.Context(), s.Open(), folder); err == nil {
						t.Errorf("%+v, want no manifest", m)
					}
					mended.Store(true)
					if discard {
						if err := run.Discard(t.Context()); err != nil {
							t.Fatal(err)
						}
						if all := s.Names(); len(all) != 1 || path.Base(all[0]) != export.ManifestName {
							t.Errorf("in the bucket are %q, want the mark", all)
						}
						wantNoRecords(t, client)
						return
					}
					if err := run.Jobs()[2].Retry(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
					m, err := run.Wait(t.Context())
					if err != nil || m.Records != 36 {
						t.Fatalf("%+v, %v", m, err)
					}
					checkLast(t, s, run, m)
					wantNoRecords(t, client)
				})
			})
		}
	}
}

// TestDiscardAtTheEnd stops the end of an export just before it decides that the export has
// succeeded. Meanwhile it discards the export. The export must stay discarded, and only the mark
// may remain.
func TestDiscardAtTheEnd(t *testing.T) {
	s := testbucket.New()
	var reached, discarded chan bool
	var armed atomic.Bool
	armed.Store(true)
	s.Hook = func(c *testbucket.Call) error {
		if c.Op == "write" && path.Base(c.Key) == export.ManifestName && armed.CompareAndSwap(true, false) {
			close(reached)
			<-discarded
		}
		return c.Effect()
	}
	x := newExport(s.Open(), &export.Options{Files: 2})
	runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
		reached, discarded = make(chan bool), make(chan bool)
		putFew(t, client, 40)
		run := startFew(t, d, x, false)
		<-reached
		synctest.Wait() // until the jobs of the earlier stages have ended
		if err := run.Jobs()[2].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := run.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(discarded)
		time.Sleep(24 * time.Hour)
		if all := s.Names(); len(all) != 1 || path.Base(all[0]) != export.ManifestName {
			t.Errorf("in the bucket are %q, want the mark", all)
		}
		if m, err := run.Wait(t.Context()); err == nil {
			t.Errorf("%+v, want an error", m)
		}
	})
}

// TestDiscardTooLate discards an export at the moment when its end decides that it has succeeded.
// The end is first. The export must have succeeded, and nothing may be deleted.
func TestDiscardTooLate(t *testing.T) {
	s := testbucket.New()
	var reached, discards, decided chan bool
	var writes atomic.Int64
	s.Hook = func(c *testbucket.Call) error {
		if c.Op != "write" || path.Base(c.Key) != export.ManifestName {
			return c.Effect()
		}
		switch writes.Add(1) {
		case 1: // the read by the export's end
			close(reached)
			<-discards
			defer close(decided)
		case 2: // the read by Discard
			close(discards)
			<-decided
		}
		return c.Effect()
	}
	x := newExport(s.Open(), &export.Options{Files: 2})
	runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
		reached, discards, decided = make(chan bool), make(chan bool), make(chan bool)
		putFew(t, client, 40)
		run := startFew(t, d, x, false)
		<-reached
		synctest.Wait() // until the jobs of the earlier stages have ended
		before := s.Names()
		if err := run.Jobs()[2].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := run.Discard(t.Context()); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "it has succeeded") {
			t.Errorf("%v, want an error that says that it has succeeded", err)
		}
		time.Sleep(24 * time.Hour)
		m, err := run.Wait(t.Context())
		if err != nil || m.Records != 36 {
			t.Errorf("%+v, %v", m, err)
		}
		for _, name := range before {
			if !slices.Contains(s.Names(), name) {
				t.Errorf("in the bucket are %q, without %q", s.Names(), name)
			}
		}
	})
}

// TestManifestDeleted deletes the manifest of an export that has succeeded. The errors of Wait and
// Discard must say so, and Discard must delete nothing.
func TestManifestDeleted(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{Files: 2})
	runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 40)
		run := startFew(t, d, x, false)
		if _, err := run.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range s.Names() {
			if path.Base(name) == export.ManifestName {
				s.Put(name, nil)
			}
		}
		before := len(s.Names())
		if m, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "has somebody deleted it?") {
			t.Errorf("%+v, %v", m, err)
		}
		if err := run.Discard(t.Context()); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "it has succeeded: delete the folder") {
			t.Errorf("%v, want that it has succeeded", err)
		}
		if after := len(s.Names()); after != before {
			t.Errorf("%d blobs are left, want %d", after, before)
		}
	})
}

// TestHeldStates calls Count and Write for held exports in each state. If a call is refused, its
// error must say why.
func TestHeldStates(t *testing.T) {
	for _, allow := range []bool{false, true} {
		bucket := testbucket.New().Open()
		var broken, slow atomic.Bool
		broken.Store(true)
		held := func(name string) *export.Export[mapper.NoParams] {
			return must(export.New(name, bucket, func(_ context.Context, e *mapper.Entity[order],
				_ mapper.NoParams) (line, error) {
				if slow.Load() {
					time.Sleep(time.Minute)
				}
				if e.Value.N == 3 && broken.Load() {
					return line{}, mapper.Permanent(errors.New("three"))
				}
				return line(e.Value), nil
			}, &export.Options{Files: 2, AllowFailures: allow}))
		}
		x, other := held("orders"), held("others")
		mappertest.Run(t, append(x.Mappers(), other.Mappers()...), nil, func(t *testing.T, w *mappertest.Env) {
			putFew(t, w.Client, 40)
			start := func() *export.Run {
				t.Helper()
				run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
					&export.StartOptions{StartOptions: mapper.StartOptions{ID: "held", PageSize: 10}, Folder: folder,
						Hold: true})
				if err != nil {
					t.Fatal(err)
				}
				return run
			}
			run := start()
			wantHeldRefused(t, other, run, mapper.ErrIDTaken, `it is a job of "orders"`)
			if !allow {
				wantHeldRefused(t, x, run, mapper.ErrWrongState, "has failed on 1 entities")
				broken.Store(false)
				if err := run.Jobs()[0].Retry(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := x.Count(t.Context(), run); err != nil || n != 2 {
				t.Errorf("%d files, %v, want 2", n, err)
			}
			if err := x.Write(t.Context(), run, 0, mapper.NoParams{}); err != nil {
				t.Fatal(err)
			}
			if err := x.Write(t.Context(), run, 0, mapper.NoParams{}); err != nil {
				t.Errorf("once more: %v", err)
			}
			if err := x.Write(t.Context(), run, 3, mapper.NoParams{}); !errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("with another number: %v, want ErrIDTaken", err)
			}
			m, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Files) != 2 {
				t.Errorf("%d files, want the 2 of the options", len(m.Files))
			}
			clean := func(jobs ...*mapper.Job) {
				t.Helper()
				for _, job := range jobs {
					if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(3 * time.Hour) // until the records of the jobs are deleted
			}
			jobs := run.Jobs()
			clean(jobs[1])
			wantHeldRefused(t, x, run, nil, "there are 0 parts, and ")
			clean(jobs[0], jobs[2])
			if m, err := run.Wait(t.Context()); err != nil || m == nil {
				t.Errorf("a Wait for an export that was cleaned up: %+v, %v, want its manifest", m, err)
			}
			start()
			wantHeldRefused(t, x, run, mapper.ErrIDTaken, "the ID belongs to another run")
			slow.Store(true)
			aborted := must(x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{StartOptions: mapper.StartOptions{ID: "aborted", PageSize: 10}, Hold: true}))
			if err := aborted.Jobs()[0].Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantHeldRefused(t, x, aborted, mapper.ErrWrongState, "job aborted is aborted")
			slow.Store(false)
		})
	}
}

// wantHeldRefused checks that Count and Write of a held export return errors that contain want. If
// is is not nil, the errors must wrap it.
func wantHeldRefused(t *testing.T, x *export.Export[mapper.NoParams], run *export.Run, is error, want string) {
	t.Helper()
	n, err := x.Count(t.Context(), run)
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), want) {
		t.Errorf("Count: %d, %v, want an error with %q", n, err, want)
	}
	err = x.Write(t.Context(), run, 0, mapper.NoParams{})
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), want) {
		t.Errorf("Write: %v, want an error with %q", err, want)
	}
}

// TestHeldByOtherBuild checks that Count and Write refuse an export whose parts were written by a
// build with another format.
func TestHeldByOtherBuild(t *testing.T) {
	bucket := testbucket.New().Open()
	before, after := newExport(bucket, nil), newExport(bucket, &export.Options{Format: export.CSV})
	runAsked(t, before.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 40)
		run := startFew(t, d, before, true)
		if _, err := before.Count(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		if n, err := after.Count(t.Context(), run); err == nil ||
			!strings.Contains(err.Error(), `this build has "csv/2"`) {
			t.Errorf("Count: %d, %v", n, err)
		}
		if err := after.Write(t.Context(), run, 1, mapper.NoParams{}); err == nil ||
			!strings.Contains(err.Error(), `this build has "csv/2"`) {
			t.Errorf("Write: %v", err)
		}
	})
}

// TestOtherBuildWritesNothing deploys a build with another format, while parts are written or while
// files are joined. The new build must not write parts or files for this run.
func TestOtherBuildWritesNothing(t *testing.T) {
	for stage, job := range []string{`"orders"`, `"orders-join"`} {
		t.Run(job, func(t *testing.T) {
			s := testbucket.New()
			before := newExport(s.Open(), &export.Options{Files: 2})
			after := newExport(s.Open(), &export.Options{Files: 2, Format: export.CSV})
			var open atomic.Bool
			ask := func(_, body string) int {
				if strings.Contains(body, job) && !open.Load() {
					return 0
				}
				return 1
			}
			runAsked(t, before.Mappers(), ask, func(t *testing.T, client *datastore.Client, d *deployed) {
				putFew(t, client, 40)
				run := startFew(t, d, before, false)
				for {
					if _, err := run.Jobs()[stage].Status(t.Context()); err == nil {
						break
					}
					time.Sleep(time.Second)
				}
				names := len(s.Names())
				d.deploy(after.Mappers())
				open.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				m, err := run.Wait(ctx)
				if err == nil {
					t.Errorf("%+v, want an error", m)
				}
				status, err := run.Jobs()[stage].Status(t.Context())
				if text := fmt.Sprintf("%+v, %v", status, err); !strings.Contains(text,
					`"jsonl", and this build has "csv/2"`) {
					t.Errorf("the status is %s, want an error that names both formats", text)
				}
				if left := s.Names(); len(left) != names {
					t.Errorf("in the bucket are %q, want %d blobs", left, names)
				}
			})
		})
	}
}

// TestLateNames runs an export whose function Name returns equal names, but only for more files
// than a start checks. The export must fail, keep its parts, and write no file.
func TestLateNames(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{FileBytes: 1500,
		Name: func(f export.File) string { return fmt.Sprint("file-", min(f.Index, 1)) }})
	runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 40)
		run := startFew(t, d, x, false)
		if m, err := run.Wait(t.Context()); err == nil ||
			!strings.Contains(err.Error(), `"file-1" for both file 1 and file 2`) {
			t.Errorf("%+v, %v, want an error that names both files", m, err)
		}
		for _, name := range s.Names() {
			if !strings.Contains(name, "/_parts/") {
				t.Errorf("%s is there", name)
			}
		}
	})
}

// TestFileOfTheLimit exports to one file. If the file has exactly Options.FileBytes bytes, the
// export must succeed. If the file would be one byte larger, the export must fail.
func TestFileOfTheLimit(t *testing.T) {
	run := func(limit int64) (m *export.Manifest, err error) {
		x := newExport(testbucket.New().Open(), &export.Options{Files: 1, FileBytes: limit})
		runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
			putFew(t, client, 40)
			m, err = startFew(t, d, x, false).Wait(t.Context())
		})
		return m, err
	}
	m, err := run(0)
	if err != nil {
		t.Fatal(err)
	}
	if exact, err := run(m.Bytes); err != nil || exact.Bytes != m.Bytes {
		t.Errorf("a file of the limit, %d bytes: %+v, %v", m.Bytes, exact, err)
	}
	if _, err := run(m.Bytes - 1); err == nil || !strings.Contains(err.Error(), "Options.FileBytes is") {
		t.Errorf("a file larger than the limit: %v, want an error", err)
	}
}

// TestDamagedFiles changes the record of a file, so that it says that the file was not written, or
// has a wrong number of records. The export must not succeed.
func TestDamagedFiles(t *testing.T) {
	for property, c := range map[string]struct {
		value any
		want  string
	}{
		"Written": {false, "file 0 was not written"},
		"Records": {int64(100), "and 36 were counted: is a part missing?"},
	} {
		s := testbucket.New()
		x := newExport(s.Open(), &export.Options{Files: 2})
		var open atomic.Bool
		ask := func(path, body string) int {
			if strings.Contains(body, `"orders-join"`) && strings.HasSuffix(path, "/finalize") && !open.Load() {
				return 0
			}
			return 1
		}
		runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, d *deployed) {
			putFew(t, client, 40)
			run := startFew(t, d, x, false)
			for {
				if status, err := run.Jobs()[1].Status(t.Context()); err == nil && status.Processed == 2 {
					break
				}
				time.Sleep(time.Second)
			}
			var files []datastore.PropertyList
			keys, err := client.GetAll(t.Context(), datastore.NewQuery("ScattermapFile"), &files)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range files[0] {
				if p.Name == property {
					files[0][i].Value = c.value
				}
			}
			if _, err := client.Put(t.Context(), keys[0], &files[0]); err != nil {
				t.Fatal(err)
			}
			open.Store(true)
			if m, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v, want an error with %q", m, err, c.want)
			}
		})
	}
}

// TestForeignJobs checks that Find returns an error for the ID of a job which is no export, or
// whose parameters are not the ones of an export.
func TestForeignJobs(t *testing.T) {
	bucket := testbucket.New().Open()
	x := newExport(bucket, nil)
	type list []int
	visit := func(name string) *mapper.Mapper[list] {
		return mapper.Visit(name, func(context.Context, *mapper.Entity[order], list) error { return nil })
	}
	other, before := visit("other"), visit("orders")
	runAsked(t, []mapper.AnyMapper{other, before}, once, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 10)
		for id, m := range map[string]*mapper.Mapper[list]{"of-other": other, "before": before} {
			_, err := m.Start(t.Context(), d.Engine, mapper.Query{Kind: "Order"}, list{1}, &mapper.StartOptions{ID: id,
				AllowOverlap: true})
			if err != nil {
				t.Fatal(err)
			}
		}
		d.deploy(x.Mappers())
		if run, err := x.Find(t.Context(), d.Engine, "of-other"); !errors.Is(err, mapper.ErrIDTaken) ||
			!strings.Contains(err.Error(), `it is a job of "other"`) {
			t.Errorf("%+v, %v, want ErrIDTaken", run, err)
		}
		if run, err := x.Find(t.Context(), d.Engine, "before"); err == nil ||
			!strings.Contains(err.Error(), "the job's parameters") {
			t.Errorf("%+v, %v, want an error about the parameters", run, err)
		}
		if run, err := x.Find(t.Context(), d.Engine, "none"); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("%+v, %v, want ErrNoSuchJob", run, err)
		}
	})
}
