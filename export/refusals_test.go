package export_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// errDenied is the error of a refused call. Clients do not retry a call with this code.
var errDenied = status.Error(codes.PermissionDenied, "the caller lacks a role")

// A refuser refuses some calls that an export makes to its bucket, database and queue.
type refuser struct {
	refuses func(call string) bool // decides about a call by its name; never called concurrently
	lost    bool                   // whether a refused call takes effect, so that only its answer is lost

	mu     sync.Mutex
	failed int           // number of times that the test has found a job in the state failed
	took   time.Duration // from the start of the export to its end
}

func (r *refuser) do(call string, effect func() error) error {
	r.mu.Lock()
	refused := r.refuses(call)
	r.mu.Unlock()
	if !refused {
		return effect()
	}
	if r.lost {
		_ = effect()
	}
	return errDenied
}

var runName = regexp.MustCompile(`run-[0-9a-z]{20,32}`)

// operatorKey marks the context of calls that the test makes itself.
type operatorKey struct{}

// attempt matches the section of a part's name that differs for each attempt of a page.
var attempt = regexp.MustCompile(`-[0-9]+-[0-9a-z]+`)

// of returns the name by which refuses knows a call. It is the same for all attempts of a page.
func of(ctx context.Context, call string) string {
	call = attempt.ReplaceAllString(call, "")
	if ctx.Value(operatorKey{}) != nil {
		return "operator: " + call
	}
	return call
}

func (r *refuser) bucket(c *testbucket.Call) error {
	return r.do(of(c, c.Op+" "+runName.ReplaceAllString(c.Key, "run")), c.Effect)
}

// services is an interceptor that may refuse calls which read or write the records of exports
// (parts, files, and jobs of later stages), or which create tasks.
func (r *refuser) services(
	ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	effect := func() error { return invoke(ctx, method, req, resp, conn, opts...) }
	var about []string
	add := func(k *pb.Key) {
		last := k.GetPath()[len(k.GetPath())-1]
		if name := last.GetName(); last.GetKind() != "ScattermapJob" || strings.HasSuffix(name, "-join") ||
			strings.HasSuffix(name, "-delete") || ctx.Value(operatorKey{}) != nil {
			about = append(about, last.GetKind()+" "+name)
		}
	}
	switch req := req.(type) {
	case *pb.LookupRequest:
		for _, k := range req.Keys {
			add(k)
		}
	case *pb.RunQueryRequest:
		for _, kind := range req.GetQuery().GetKind() {
			about = append(about, fmt.Sprint(kind.GetName(), req.GetQuery().GetFilter(),
				string(req.GetQuery().GetStartCursor())))
		}
	case *cloudtaskspb.CreateTaskRequest:
		var body struct{ Job, Range string }
		_ = json.Unmarshal(req.GetTask().GetHttpRequest().GetBody(), &body)
		return r.do(of(ctx, fmt.Sprint(newTask, path.Base(req.GetTask().GetHttpRequest().GetUrl()), " ", body.Job, " ",
			body.Range)), effect)
	case *pb.CommitRequest:
		for _, m := range req.Mutations {
			for _, e := range []*pb.Entity{m.GetInsert(), m.GetUpsert()} {
				if k := e.GetKey(); k != nil {
					add(k)
				}
			}
			if k := m.GetDelete(); k != nil {
				add(k)
			}
		}
	}
	about = slices.DeleteFunc(about, func(s string) bool {
		return !strings.HasPrefix(s, "ScattermapPart") && !strings.HasPrefix(s, "ScattermapFile") &&
			!strings.HasPrefix(s, "ScattermapJob")
	})
	if len(about) == 0 {
		return effect()
	}
	return r.do(of(ctx, path.Base(method)+" "+strings.Join(about, ", ")), effect)
}

const newTask = "CreateTask "

// oncePerCall returns a function that refuses the first call of each name.
func oncePerCall(seen map[string]bool) func(call string) bool {
	return func(call string) bool {
		first := !seen[call]
		seen[call] = true
		return first
	}
}

// putFew puts n orders. The export makes no record of some of them.
func putFew(t *testing.T, client *datastore.Client, n int) {
	t.Helper()
	keys, all := make([]*datastore.Key, n), make([]order, n)
	for i := range n {
		keys[i], all[i] = datastore.NameKey("Order", fmt.Sprintf("%03d", i), nil), order(lineOf(int64(i)))
		if i%10 == 7 {
			all[i].N = -1
		}
	}
	if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
		t.Fatal(err)
	}
}

// contentsOf returns the names of all blobs, and the records of all files together, in order. Which
// file has which records depends on the random names of parts.
func contentsOf(s *testbucket.Bucket) (all []string) {
	for name, text := range s.Now() {
		all = append(all, runName.ReplaceAllString(name, "run"))
		if strings.HasSuffix(name, ".jsonl") {
			all = append(all, strings.Split(string(text), "\n")...)
		}
	}
	slices.Sort(all)
	return all
}

func once(string, string) int { return 1 }

// testRefused runs an export of a few orders with the refuser, and returns the bucket's contents at
// its end.
func testRefused(t *testing.T, o *export.Options, r *refuser) (contents []string, m *export.Manifest) {
	t.Helper()
	s := testbucket.New()
	s.Hook = r.bucket
	x := newExport(s.Open(), o)
	runWith(t, x.Mappers(), once, r.services, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 40)
		begun := time.Now()
		run, err := tryFew(t.Context(), d, x, false)
		for n := 0; err != nil && n < 10; n++ {
			run, err = tryFew(t.Context(), d, x, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 20 { // retry entities that have failed too often
			if m, err = run.Wait(t.Context()); err == nil {
				break
			}
			for _, job := range run.Jobs() {
				if status, err := job.Status(t.Context()); err == nil && status.State == mapper.StateFailed {
					r.failed++
				}
				_ = job.Resume(t.Context())
				_ = job.Retry(t.Context(), nil)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		r.took = time.Since(begun)
		checkFiles(t, s, folder, m)
		wantNoRecords(t, client)
		contents = contentsOf(s)
	})
	return contents, m
}

func startFew(t *testing.T, d *deployed, x *export.Export[mapper.NoParams], hold bool) *export.Run {
	t.Helper()
	run, err := tryFew(t.Context(), d, x, hold)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func tryFew(
	ctx context.Context, d *deployed, x *export.Export[mapper.NoParams], hold bool,
) (*export.Run, error) {
	return x.Start(ctx, d.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{ID: "orders", PageSize: 10}, Folder: folder, Hold: hold})
}

func wantNoRecords(t *testing.T, client *datastore.Client) {
	t.Helper()
	for _, kind := range []string{"ScattermapPart", "ScattermapFile"} {
		if n, err := client.Count(t.Context(), datastore.NewQuery(kind)); err != nil || n > 0 {
			t.Errorf("%d entities of %s are left, %v", n, kind, err)
		}
	}
}

// TestRefusedCalls refuses each call of the bucket and of the database once, or loses its answer.
// At the end, the bucket must have the same contents as without refusals.
func TestRefusedCalls(t *testing.T) {
	for name, o := range map[string]*export.Options{
		"waits for retries": {Files: 2}, "allows failures": {Files: 2, AllowFailures: true},
	} {
		want, _ := testRefused(t, o, &refuser{refuses: func(string) bool { return false }})
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", answers are lost: ", lost), func(t *testing.T) {
				seen := make(map[string]bool)
				got, m := testRefused(t, o, &refuser{refuses: oncePerCall(seen), lost: lost})
				if !slices.Equal(got, want) {
					t.Errorf("in the bucket are %q, want %q", got, want)
				}
				if len(seen) < 30 {
					t.Errorf("only %d calls were refused: %v", len(seen), seen)
				}
				if m.Records != 36 || m.Coverage == nil || m.Coverage.Ranges == 0 {
					t.Errorf("the manifest is %+v", m)
				}
			})
		}
	}
}

// TestEachRefusedCall repeats an export, and refuses another one of its calls each time: every
// third, and each in .ci/nightly. TestRefusedCalls refuses each of them once in one export. At the
// end, the bucket must have the same contents as without refusals.
func TestEachRefusedCall(t *testing.T) {
	o := &export.Options{Files: 2}
	want, _ := testRefused(t, o, &refuser{refuses: func(string) bool { return false }})
	step := testflag.Size(t, 3, 3, 1)
	for k := int(testflag.Seed(t) % uint64(step)); k < 300; k += step {
		n, refused := 0, ""
		r := &refuser{refuses: func(call string) bool {
			if n++; n == k+1 {
				refused = call
			}
			return n == k+1
		}}
		got, m := testRefused(t, o, r)
		if refused == "" {
			return
		}
		if r.failed > 0 {
			t.Errorf("after %s was refused once, a job has failed", refused)
		}
		if strings.HasPrefix(refused, newTask) && r.took > time.Minute {
			t.Errorf("after %s was refused once, the export took %s, as if only a sweep had created the task",
				refused, r.took)
		}
		if !slices.Equal(got, want) || m.Records != 36 || m.Coverage == nil {
			t.Errorf("after %s was refused, the manifest is %+v, and in the bucket are %q, want %q", refused, m, got,
				want)
		}
	}
	t.Error("it makes more than 300 calls")
}

// TestRefusedLateRetry retries a failed entity after the files are written. The call that checks
// whether they are written is refused once. Despite that, the entity must not get a part, which
// would be in no file.
func TestRefusedLateRetry(t *testing.T) {
	s, r := testbucket.New(), &refuser{refuses: func(string) bool { return false }}
	s.Hook = r.bucket
	var mended atomic.Bool
	x := must(export.New("orders", s.Open(), func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		if e.Value.N == 3 && !mended.Load() {
			return line{}, mapper.Permanent(errors.New("three"))
		}
		return line(e.Value), nil
	}, &export.Options{AllowFailures: true}))
	runWith(t, x.Mappers(), once, r.services, func(t *testing.T, client *datastore.Client, d *deployed) {
		putFew(t, client, 40)
		run := startFew(t, d, x, false)
		m, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before := s.Names()
		mended.Store(true)
		looked := 0
		r.mu.Lock()
		r.refuses = func(call string) bool {
			if call == "Lookup ScattermapJob orders-join" {
				looked++
			}
			return call == "Lookup ScattermapJob orders-join" && looked == 1
		}
		r.mu.Unlock()
		if err := run.Jobs()[0].Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "start another one") {
			t.Errorf("%v, want an error that says what to do", err)
		}
		if after := s.Names(); !slices.Equal(after, before) || looked < 2 {
			t.Errorf("in the bucket are %q, and before %q; it was looked for %d times", after, before, looked)
		}
		wantNoRecords(t, client)
		checkFiles(t, s, folder, m)
	})
}

// refuseEach repeats an operation of an operator, and refuses another one of its calls each time.
// It does not refuse calls whose names contain helps. Each time the operation must return the
// error. Without a refused call it must succeed.
func refuseEach(t *testing.T, r *refuser, helps string, do func(ctx context.Context) error) {
	t.Helper()
	ctx := context.WithValue(t.Context(), operatorKey{}, true)
	for k := range 100 {
		n, refused := 0, ""
		r.refuses = func(call string) bool {
			if !strings.HasPrefix(call, "operator: ") || helps != "" && strings.Contains(call, helps) {
				return false
			}
			if n++; n == k+1 {
				refused = call
			}
			return n == k+1
		}
		err := do(ctx)
		r.refuses = func(string) bool { return false }
		switch {
		case refused == "" && err != nil:
			t.Fatalf("after %d refused calls: %v", k, err)
		case refused == "":
			if k == 0 {
				t.Error("it makes no calls")
			}
			return
		case err == nil || !strings.Contains(err.Error(), "lacks a role"):
			t.Errorf("%s is refused, and it says %v", refused, err)
		}
	}
	t.Error("it has more than 100 calls")
}

// TestRefusedOperations refuses each call of each operation of an operator, one at a time. The
// operation must fail with the call's error. If it is repeated, it must do the same as without
// refused calls.
func TestRefusedOperations(t *testing.T) {
	type world struct {
		*testing.T
		*refuser
		store  *testbucket.Bucket
		client *datastore.Client
		d      *deployed
		x      *export.Export[mapper.NoParams]
	}
	aborted := func(w *world) *export.Run {
		run := startFew(w.T, w.d, w.x, true)
		if _, err := run.Jobs()[0].Wait(w.Context()); err != nil {
			w.Fatal(err)
		}
		return run
	}
	for name, test := range map[string]func(w *world){
		"start": func(w *world) {
			var run *export.Run
			// A refused start of an older build has left this claim. The start looks for its job.
			w.store.Put("of/_STARTED", []byte(`{"export":"none","run":"none"}`))
			refuseEach(w.T, w.refuser, "", func(ctx context.Context) (err error) {
				run, err = tryFew(ctx, w.d, w.x, false)
				return err
			})
			if m, err := run.Wait(w.Context()); err != nil || m.Records != 36 {
				w.Errorf("%+v, %v", m, err)
			}
		},
		"find": func(w *world) {
			startFew(w.T, w.d, w.x, false)
			refuseEach(w.T, w.refuser, "", func(ctx context.Context) error {
				_, err := w.x.Find(ctx, w.d.Engine, "orders")
				return err
			})
		},
		"wait": func(w *world) {
			run := startFew(w.T, w.d, w.x, false)
			if _, err := run.Wait(w.Context()); err != nil {
				w.Fatal(err)
			}
			refuseEach(w.T, w.refuser, "", func(ctx context.Context) error {
				_, err := run.Wait(ctx)
				return err
			})
		},
		"count": func(w *world) {
			run := aborted(w)
			refuseEach(w.T, w.refuser, "", func(ctx context.Context) error {
				n, err := w.x.Count(ctx, run)
				if err == nil && n != 2 {
					w.Errorf("%d files, want 2", n)
				}
				return err
			})
		},
		"write": func(w *world) {
			run := aborted(w)
			// The start of the next stage's job reads some files, but only to divide the job well.
			refuseEach(w.T, w.refuser, "ScattermapFile", func(ctx context.Context) error {
				return w.x.Write(ctx, run, 3, mapper.NoParams{})
			})
			if n, err := w.x.Count(w.Context(), run); err != nil || n != 3 {
				w.Errorf("%d files, %v, want 3", n, err)
			}
			if m, err := run.Wait(w.Context()); err != nil || len(m.Files) != 3 || m.Records != 36 {
				w.Errorf("%+v, %v", m, err)
			}
		},
		"discard": func(w *world) {
			run := aborted(w)
			if err := run.Jobs()[0].Abort(w.Context()); err != nil && !errors.Is(err, mapper.ErrWrongState) {
				w.Fatal(err)
			}
			refuseEach(w.T, w.refuser, "", run.Discard)
			if all := w.store.Names(); len(all) != 1 || path.Base(all[0]) != export.ManifestName {
				w.Errorf("in the bucket are %q, want the mark", all)
			}
			wantNoRecords(w.T, w.client)
		},
		"read": func(w *world) {
			if _, err := startFew(w.T, w.d, w.x, false).Wait(w.Context()); err != nil {
				w.Fatal(err)
			}
			refuseEach(w.T, w.refuser, "", func(ctx context.Context) error {
				_, err := export.ReadManifest(ctx, w.store.Open(), folder)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{refuser: &refuser{refuses: func(string) bool { return false }}, store: testbucket.New()}
			w.store.Hook = w.bucket
			w.x = newExport(w.store.Open(), &export.Options{Files: 2})
			runWith(t, w.x.Mappers(), once, w.services, func(t *testing.T, client *datastore.Client, d *deployed) {
				w.T, w.client, w.d = t, client, d
				putFew(t, client, 40)
				test(w)
			})
		})
	}
}

// TestTooLongFolder starts exports into folders so long that the names of their blobs exceed the
// limit of buckets. Each start must be refused, and write nothing. In the longest allowed folder,
// all names must be within the limit.
func TestTooLongFolder(t *testing.T) {
	s := testbucket.New()
	longest := 0
	s.Hook = func(c *testbucket.Call) error {
		longest = max(longest, len(c.Key))
		return c.Effect()
	}
	x := newExport(s.Open(), &export.Options{Files: 2, Name: func(f export.File) string {
		if strings.HasPrefix(f.Export, "long") {
			return fmt.Sprint(strings.Repeat("n", 150), f.Index)
		}
		return fmt.Sprint(f.Index)
	}})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		for i, test := range []struct {
			id, want string
			folder   int
		}{
			{"short", "", 902}, {"short", "the folder", 903}, {"short", "the folder", 2000}, {"long", "", 841},
			{"long", "names of files", 842},
		} {
			id := fmt.Sprint(test.id, i)
			run, err := startIn(t, w, x, id, strings.Repeat("f", test.folder))
			if test.want == "" {
				if err == nil {
					_, err = run.Wait(t.Context())
				}
				if err != nil {
					t.Errorf("%+v: %.200v", test, err)
				}
				continue
			}
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: %v", test, err)
			}
			if _, err := x.Find(t.Context(), w.Engine, id); !errors.Is(err, mapper.ErrNoSuchJob) {
				t.Errorf("%+v: there is a job, %v", test, err)
			}
		}
		if longest > 1024 || longest < 1000 {
			t.Errorf("the longest name has %d bytes", longest)
		}
	})
}
