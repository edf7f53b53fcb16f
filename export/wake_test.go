package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"gocloud.dev/gcerrors"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// A deployed is the engine to which the queue delivers. The function deploy replaces it by another
// build's engine.
type deployed struct {
	*mapper.Engine
	deploy func(mappers []mapper.AnyMapper, others ...*tasks.Queue)
	tasks  *cloudtasks.Client
}

// noPanics is the log's writer in a test. A line about a panic fails the test, because the job
// itself would only retry the page.
type noPanics struct{ t *testing.T }

func (n noPanics) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		n.t.Errorf("%s", line)
	}
	return n.t.Output().Write(line)
}

// runAsked runs a test in virtual time. The function ask returns for each delivery how many times
// it is carried out concurrently.
func runAsked(t *testing.T, mappers []mapper.AnyMapper, ask func(path, body string) int, test func(t *testing.T,
	client *datastore.Client, d *deployed)) {
	t.Helper()
	runWith(t, mappers, ask, nil, test)
}

// runWith does the same as runAsked, and passes the engine's calls of the database, and the calls of the queue, to an
// interceptor. The test's own client does not have the interceptor.
func runWith(t *testing.T, mappers []mapper.AnyMapper, ask func(path, body string) int,
	intercept grpc.UnaryClientInterceptor, test func(t *testing.T, client *datastore.Client, d *deployed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var handler http.Handler
		em := emulator.ForTest(t,
			&emulator.Options{Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter,
				r *http.Request) {
				serveTimes(handler, ask, rw, r)
			}))})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		var opts []option.ClientOption
		if intercept != nil {
			opts = append(opts, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept)))
		}
		client, err := em.DatastoreClient(t.Context(), "test", mapper.ClientOption())
		must(err)
		t.Cleanup(func() { client.Close() })
		queues, err := em.TasksClient(t.Context(), opts...)
		must(err)
		t.Cleanup(func() { queues.Close() })
		_, err = queues.CreateQueue(t.Context(),
			&cloudtaskspb.CreateQueueRequest{Parent: "projects/test/locations/here",
				Queue: &cloudtaskspb.Queue{Name: queueName}})
		must(err)
		queue, err := tasks.NewQueue(queues, queueName, "http://worker/mapper/",
			&tasks.Options{InsecureSkipVerify: true})
		must(err)
		served := client
		if intercept != nil {
			served, err = em.DatastoreClient(t.Context(), "test", append(opts, mapper.ClientOption())...)
			must(err)
			t.Cleanup(func() { served.Close() })
		}
		d := &deployed{tasks: queues}
		d.deploy = func(mappers []mapper.AnyMapper, others ...*tasks.Queue) {
			d.Engine, err = mapper.NewEngine(served, queue, &mapper.EngineOptions{Mappers: mappers, OtherQueues: others,
				Logger: slog.New(slog.NewTextHandler(noPanics{t}, nil))})
			must(err)
			handler = d.Handler()
		}
		d.deploy(mappers)
		t.Cleanup(func() {
			em.Reset()
			time.Sleep(24 * time.Hour)
		})
		test(t, client, d)
	})
}

func serveTimes(handler http.Handler, ask func(path, body string) int, rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	again := func() *http.Request {
		r := r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		return r
	}
	n := ask(r.URL.Path, string(body))
	if n == 0 {
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	var others sync.WaitGroup
	for range n - 1 {
		others.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), again()) })
		time.Sleep(time.Second)
	}
	handler.ServeHTTP(rw, again())
	others.Wait()
}

// startOrders starts an export of all orders.
func startOrders(t *testing.T, e *deployed, x *export.Export[mapper.NoParams]) *export.Run {
	t.Helper()
	run, err := x.Start(t.Context(), e.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{ID: "orders", PageSize: 50}, Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestLatePlan plans the files of an export in two concurrent deliveries. One stops until a file is
// joined, and then continues. It must not overwrite the record of that file.
func TestLatePlan(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{Files: 2})
	var mu sync.Mutex
	var joined, late chan bool
	plans := 0
	ask := func(path, body string) int {
		if strings.HasSuffix(path, "/finalize") && strings.Contains(body, `"orders"`) {
			return 2
		}
		return 1
	}
	s.Hook = func(c *testbucket.Call) error {
		switch {
		case c.Op == "read" && strings.HasPrefix(c.Key, folder+"/run-") && strings.HasSuffix(c.Key, "/manifest.json"):
			mu.Lock()
			plans++
			first := plans == 1
			mu.Unlock()
			if first {
				<-joined
				defer time.AfterFunc(10*time.Second, func() { close(late) })
			}
		case c.Op == "write" && strings.Contains(c.Key, "/00002-of-"):
			time.Sleep(time.Second) // until the first file is recorded as written
			select {
			case <-joined:
			default:
				close(joined)
			}
			<-late
		}
		return c.Effect()
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		joined, late = make(chan bool), make(chan bool)
		putOrders(t, client)
		m, err := startOrders(t, e, x).Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, folder, m)
		if plans < 3 || m.Records != orders-leftOut { // the two plans, and the list of the files
			t.Errorf("%d looked whether the run was discarded; %+v", plans, m)
		}
	})
}

// TestLateJoin joins a file in two concurrent deliveries. One stops until the export has succeeded,
// and continues after the parts are deleted. The file must stay unchanged.
func TestLateJoin(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{Files: 2})
	ask := func(path, body string) int {
		if strings.Contains(body, `"orders-join"`) && !strings.HasSuffix(path, "/finalize") {
			return 2
		}
		return 1
	}
	var first, late, wrote atomic.Bool
	s.Hook = func(c *testbucket.Call) error {
		if !strings.Contains(c.Key, "/00001-of-") {
			return c.Effect()
		}
		if c.Op == "open" && first.CompareAndSwap(false, true) {
			// longer than a sweep needs to end the stage, and shorter than the function's timeout
			time.Sleep(280 * time.Second)
			late.Store(true)
		}
		if c.Op == "write" && late.Load() {
			wrote.Store(true)
		}
		return c.Effect()
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		putOrders(t, client)
		run := startOrders(t, e, x)
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late.Load() {
			t.Error("the export has waited for the one that stands still")
		}
		time.Sleep(time.Hour)
		if !wrote.Load() {
			t.Error("nothing was written late")
		}
		checkLast(t, s, run, m)
	})
}

// TestMissingPart deletes the record of a part before files are joined. The export must write no
// manifest, and keep the parts.
func TestMissingPart(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{Files: 2})
	var open atomic.Bool
	ask := func(_, body string) int {
		if strings.Contains(body, `"orders-join"`) && !open.Load() {
			return 0
		}
		return 1
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		putOrders(t, client)
		run := startOrders(t, e, x)
		for {
			if _, err := run.Jobs()[1].Status(t.Context()); err == nil {
				break
			}
			time.Sleep(time.Second)
		}
		keys, err := client.GetAll(t.Context(), datastore.NewQuery("ScattermapPart").KeysOnly().Limit(1), nil)
		if err == nil {
			err = client.DeleteMulti(t.Context(), keys)
		}
		if err != nil {
			t.Fatal(err)
		}
		open.Store(true)
		m, err := run.Wait(t.Context())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint("and ", orders-leftOut, " were counted")) {
			t.Errorf("%+v, %v, want an error with the numbers of records", m, err)
		}
		if _, err := export.ReadManifest(t.Context(), s.Open(), folder); gcerrors.Code(err) != gcerrors.NotFound {
			t.Errorf("the manifest: %v, want that there is none", err)
		}
		parts := 0
		for _, name := range s.Names() {
			if strings.Contains(name, "/_parts/") {
				parts++
			}
		}
		if want := (orders + 49) / 50; parts < want {
			t.Errorf("%d parts are left, want %d", parts, want)
		}
	})
}

// TestDamagedPlan damages records after the files are joined: the plan of a file, or the record of
// a range. The export must write no manifest.
func TestDamagedPlan(t *testing.T) {
	for kind, want := range map[string]string{
		"ScattermapFile": "is of another plan than the one before", "ScattermapRange": "verify job orders",
	} {
		t.Run(kind, func(t *testing.T) {
			s := testbucket.New()
			x := newExport(s.Open(), &export.Options{Files: 2})
			var open atomic.Bool
			ask := func(path, body string) int {
				if strings.HasSuffix(path, "/finalize") && strings.Contains(body, `"orders-join"`) && !open.Load() {
					return 0
				}
				return 1
			}
			runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
				putOrders(t, client)
				run := startOrders(t, e, x)
				time.Sleep(time.Minute) // until the files are joined
				damage(t, client, kind)
				open.Store(true)
				if m, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%+v, %v, want an error with %q", m, err, want)
				}
				_, err := export.ReadManifest(t.Context(), s.Open(), folder)
				if gcerrors.Code(err) != gcerrors.NotFound {
					t.Errorf("the manifest: %v, want that there is none", err)
				}
			})
		})
	}
}

// damage changes the field Plan of a file, or deletes the record of a range that the first job has
// processed.
func damage(t *testing.T, client *datastore.Client, kind string) {
	t.Helper()
	var all []datastore.PropertyList
	keys, err := client.GetAll(t.Context(), datastore.NewQuery(kind), &all)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		for _, p := range all[i] {
			switch {
			case kind == "ScattermapFile" && p.Name == "Index" && p.Value == int64(1):
				all[i] = append(all[i], datastore.Property{Name: "Plan", Value: "another", NoIndex: true})
				_, err = client.Put(t.Context(), key, &all[i])
			case kind == "ScattermapRange" && p.Name == "job" && p.Value == "orders":
				err = client.Delete(t.Context(), key)
			default:
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no %s can be damaged", kind)
}

// TestOthersStage checks that an export does not continue with the records of files of another run
// with the same ID. Its error must say so.
func TestOthersStage(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), nil)
	var open atomic.Bool
	ask := func(path, body string) int {
		if strings.HasSuffix(path, "/finalize") && strings.Contains(body, `"orders"`) && !open.Load() {
			return 0
		}
		return 1
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		putOrders(t, client)
		run := startOrders(t, e, x)
		other := mapper.Visit("orders-join", func(
			context.Context, *mapper.Entity[datastore.PropertyList], map[string]any,
		) error {
			return nil
		})
		e.deploy([]mapper.AnyMapper{other})
		stage := map[string]any{"export": "orders", "run": "another", "folder": "else", "files": 1, "parts": 1,
			"records": 1, "failures": 0, "query": map[string]any{"kind": "Order"}, "layout": 2}
		if _, err := other.Start(t.Context(), e.Engine, mapper.Query{Kind: "Order"}, stage,
			&mapper.StartOptions{ID: "orders-join"}); err != nil {
			t.Fatal(err)
		}
		e.deploy(x.Mappers())
		open.Store(true)
		if _, err := run.Jobs()[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(),
			`job orders-join belongs to another run, "another": clean it up`) {
			t.Errorf("%+v, %v, want an error that says what to do", m, err)
		}
	})
}

// TestDiscardBesideOthers discards an export while another export of the same folder runs, and
// again after the other one has succeeded. The other export must stay untouched.
func TestDiscardBesideOthers(t *testing.T) {
	s := testbucket.New()
	x := newExport(s.Open(), &export.Options{Files: 2})
	var open atomic.Bool
	ask := func(_, body string) int {
		if strings.Contains(body, `-join"`) && !open.Load() {
			return 0
		}
		return 1
	}
	runAsked(t, x.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
		putOrders(t, client)
		start := func(id string) *export.Run {
			run, err := x.Start(t.Context(), e.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{
					StartOptions: mapper.StartOptions{ID: id, PageSize: 50}, Folder: folder})
			if err == nil {
				_, err = run.Jobs()[0].Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		first, second := start("first"), start("second")
		if err := first.Jobs()[1].Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		count := func() (parts int64) {
			n, err := client.Count(t.Context(), datastore.NewQuery("ScattermapPart"))
			if err != nil {
				t.Fatal(err)
			}
			return int64(n)
		}
		before := count()
		if err := first.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := count(); after != before/2 {
			t.Errorf("%d parts are recorded, want the other run's %d", after, before/2)
		}
		open.Store(true)
		m, err := second.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkLast(t, s, second, m)
		if err := second.Discard(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("%v, want ErrState for one that has succeeded", err)
		}
		checkLast(t, s, second, m)
	})
}

// TestOtherBuild continues an export with a build that has other options. Another format must be
// refused. Another Name must not change the names of planned files.
func TestOtherBuild(t *testing.T) {
	for name, options := range map[string]*export.Options{
		"format": {Files: 2, Format: export.CSV},
		"names":  {Files: 2, Name: func(f export.File) string { return fmt.Sprint("other-", f.Index) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := testbucket.New()
			bucket := s.Open()
			before, after := newExport(bucket, &export.Options{Files: 2}), newExport(bucket, options)
			var end atomic.Bool
			ask := func(path, body string) int {
				if strings.Contains(body, `"orders-join"`) && strings.HasSuffix(path, "/finalize") && !end.Load() {
					return 0
				}
				return 1
			}
			runAsked(t, before.Mappers(), ask, func(t *testing.T, client *datastore.Client, e *deployed) {
				putOrders(t, client)
				run := startOrders(t, e, before)
				for {
					if status, err := run.Jobs()[1].Status(t.Context()); err == nil && status.Processed == 2 {
						break
					}
					time.Sleep(time.Second)
				}
				e.deploy(after.Mappers())
				end.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				m, err := run.Wait(ctx)
				if name == "names" {
					if err != nil {
						t.Fatal(err)
					}
					checkLast(t, s, run, m)
					return
				}
				if err == nil {
					t.Errorf("%+v, want an error", m)
				}
				if status, err := run.Jobs()[1].Status(t.Context()); err != nil || !strings.Contains(status.Error,
					`"jsonl", and this build has "csv/2"`) {
					t.Errorf("%+v, %v, want an error that names both formats", status, err)
				}
			})
		})
	}
}

// TestOtherNames deploys another build while files are joined. The new build's option Name, which
// names files, gives one file the name that another file had before. All files must keep their
// planned names.
func TestOtherNames(t *testing.T) {
	s := testbucket.New()
	bucket := s.Open()
	name := func(shift int) func(f export.File) string {
		return func(f export.File) string { return fmt.Sprint("file-", (f.Index+shift)%f.Of) }
	}
	before := newExport(bucket, &export.Options{Files: 3, Name: name(0)})
	after := newExport(bucket, &export.Options{Files: 3, Name: name(1)})
	var changed atomic.Bool
	s.Hook = func(c *testbucket.Call) error {
		if c.Op == "write" && !changed.Load() && strings.Contains(c.Key, "/file-") &&
			!strings.HasSuffix(c.Key, "/file-1") {
			return errLost
		}
		return c.Effect()
	}
	runAsked(t, before.Mappers(), func(string, string) int { return 1 }, func(t *testing.T, client *datastore.Client,
		e *deployed) {
		putOrders(t, client)
		run := startOrders(t, e, before)
		for {
			if status, err := run.Jobs()[1].Status(t.Context()); err == nil && status.Processed == 1 {
				break
			}
			time.Sleep(time.Second)
		}
		e.deploy(after.Mappers())
		changed.Store(true)
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkLast(t, s, run, m)
		checkRecords(t, bucket, m)
		for i, f := range m.Files {
			if want := fmt.Sprint("/file-", i); !strings.HasSuffix(f.Name, want) {
				t.Errorf("file %d is %s, want %s", i, f.Name, want)
			}
		}
	})
}
