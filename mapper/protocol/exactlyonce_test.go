package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestEveryTaskTwice delivers every task twice at the same time, and a third time later.
func TestEveryTaskTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		w.handler = repeat(w.engine.Handler())
		keys := names(3000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
		time.Sleep(time.Hour) // until the last deliveries have ended
		w.wantBalances(keys, 10)
		if status.Counters["credited"] != 3000 || status.Processed != 3000 {
			t.Errorf("status %+v", status)
		}
	})
}

// repeat returns a handler that handles each request three times, the first two concurrently. It
// answers with the worst status.
func repeat(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var answers [3]*httptest.ResponseRecorder
		one := func(i int) {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			answers[i] = httptest.NewRecorder()
			h.ServeHTTP(answers[i], again)
		}
		var wg sync.WaitGroup
		wg.Go(func() { one(0) })
		wg.Go(func() { one(1) })
		wg.Wait()
		one(2)
		worst := 0
		for _, a := range answers {
			worst = max(worst, a.Code)
		}
		rw.WriteHeader(worst)
	})
}

// lost returns faults that lose a share of the calls of some methods, before or after they take
// effect. They start with a call of Resume.
func lost(seed uint64, share float64, methods ...string) *faults.Faults {
	f := faults.New(seed,
		faults.Rule{Kind: faults.LoseCall, Methods: methods, Share: share},
		faults.Rule{Kind: faults.LoseAnswer, Methods: methods, Share: share})
	f.Pause()
	return f
}

// lostIn has the numbers of injected faults in all worlds of a test. In a single world, chance may
// lose no call, or no answer.
type lostIn map[faults.Kind]int

func (l lostIn) add(f *faults.Faults) {
	for kind, n := range f.Counts() {
		l[kind] += n
	}
}

// check checks that some calls and some answers were lost.
func (l lostIn) check(t *testing.T) {
	t.Helper()
	if l[faults.LoseCall] == 0 || l[faults.LoseAnswer] == 0 {
		t.Errorf("faults injected: %v", l)
	}
}

// TestLostResponses runs jobs while calls of Datastore and Cloud Tasks fail, before or after they
// take effect.
func TestLostResponses(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed, all := testflag.Seed(t), make(lostIn)
	for i := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.3)
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(500)
			w.putAccounts(keys)
			job := w.start(10, &mapper.StartOptions{PageSize: 50})
			f.Resume()
			s := w.wait(job)
			f.Pause()
			all.add(f)
			w.wantBalances(keys, 10)
			if s.Processed != 500 || s.Counters["credited"] != 500 {
				t.Errorf("status %+v", s)
			}
		})
	}
	all.check(t)
}

// TestBeatenAtTheCommit lets the commit of a page fail with an error that does not say why.
// Meanwhile another delivery of the same task commits the page, and continues with the rest. The
// first delivery must not enqueue a second task for the rest. It must delete what it has written
// outside of Datastore.
func TestBeatenAtTheCommit(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		for name, collects := range map[string]bool{"update": false, "collect": true} {
			t.Run(map[bool]string{false: "with versions ", true: "plain "}[plain]+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &shelf{sheets: make(map[string][]int64), tried: make(map[int64]int)}
					m := mapper.Update("beaten",
						func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
							e.Value.N++
							return nil
						})
					if collects {
						m = mapper.VisitPages("beaten",
							func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64, error) {
								return e.Value.N, nil
							},
							func(_ context.Context, p *mapper.Page[int64], _ mapper.NoParams) error {
								p.OnRollback(func(context.Context) { s.remove(p.UniqueName()) })
								return s.write(p.UniqueName(), p.Records)
							})
					}
					beaten(t, plain, m)
					if got := len(s.sheets); collects && got != 3 {
						t.Errorf("%d sheets are left of 3 pages", got)
					}
				})
			})
		}
	}
}

func beaten(t *testing.T, plain bool, m *mapper.Mapper[mapper.NoParams]) {
	w, ctx := newWorld(t, setting{plain: plain}), t.Context()
	var keys []*datastore.Key
	for i := range int64(30) {
		keys = append(keys, datastore.IDKey("Leaf", i+1, nil))
	}
	_, err := w.client.PutMulti(ctx, keys, make([]leaf, len(keys)))
	w.must(err)
	process := func(intercept grpc.UnaryClientInterceptor) *mapper.Engine {
		client, err := w.emulator.DatastoreClient(ctx, "test",
			append(slices.Clip(w.options), option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept)))...)
		w.must(err)
		t.Cleanup(func() { client.Close() })
		e, err := mapper.NewEngine(client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{m},
				Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		w.must(err)
		return e
	}
	var mu sync.Mutex
	var bodies [][]byte // the bodies of deliveries for ranges
	var header http.Header
	lost, did := false, make(chan struct{})
	finished := sync.OnceFunc(func() { close(did) })
	other := process(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if err == nil && finishes(req) {
			finished()
		}
		return err
	})
	first := process(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		mu.Lock()
		now := !lost && finishes(req)
		lost = lost || now
		mu.Unlock()
		if !now {
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		time.Sleep(time.Second) // so that the two deliveries end at different times
		again := httptest.NewRequest(http.MethodPost, target+"range", bytes.NewReader(bodies[0]))
		again.Header = header
		w.deliveries.Go(func() { other.Handler().ServeHTTP(httptest.NewRecorder(), again) })
		<-did
		return status.Error(codes.ResourceExhausted, "too much at once")
	})
	handler := first.Handler()
	w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains([]byte(r.URL.Path), []byte("/range")) {
			mu.Lock()
			bodies, header = append(bodies, body), r.Header.Clone()
			mu.Unlock()
		}
		handler.ServeHTTP(rw, r)
	})
	job, err := m.Start(ctx, first, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
		&mapper.StartOptions{PageSize: 10, ExpectedWorkers: 1, Splitting: mapper.Splitting{First: 1, FanOut: 1}})
	w.must(err)
	s := w.wait(job)
	if !lost || s.Processed != 30 || s.Pages != 3 {
		t.Errorf("a commit failed: %v; %d entities in %d pages", lost, s.Processed, s.Pages)
	}
	if len(bodies) != 1 {
		t.Errorf("%d deliveries of ranges by the queue, want one, of the root: %s", len(bodies), bodies)
	}
}

// finishes reports whether a request is the commit that marks a range as done.
func finishes(req any) bool {
	commit, ok := req.(*pb.CommitRequest)
	return ok && slices.ContainsFunc(commit.Mutations, func(m *pb.Mutation) bool {
		e := m.GetUpdate()
		return e != nil && e.Key.Path[0].Kind == record.RangeKind && e.Properties["state"].GetStringValue() == "done"
	})
}

// TestLateAnswer delays the answer to the commit of a start until the job has failed. The log must
// say that the job was started, and once that it has failed.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("broken", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return mapper.Permanent(errors.New("broken"))
		})
		var log logged
		w := newWorld(t, setting{})
		w.observe(&log, nil, m)
		w.putAccounts(names(100))
		var late atomic.Bool
		lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if c, ok := req.(*pb.CommitRequest); !ok || err != nil || len(c.Mutations) == 0 || late.Swap(true) {
				return err
			}
			time.Sleep(3 * time.Hour) // until a sweep has found the job
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		client, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(),
			option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(lose)))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		starter, err := mapper.NewEngine(client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{m}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		job, err := m.Start(t.Context(), starter, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j"})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateFailed {
			t.Fatalf("status %+v, %v", s, err)
		}
		var failed, started int
		for _, line := range log.lines() {
			if strings.HasPrefix(line, "ERROR job failed") {
				failed++
			}
			if line == "INFO job running j cause=started" {
				started++
			}
		}
		if failed != 1 || started != 1 {
			t.Errorf("the log says %d times that the job was started, and %d times that it has failed:\n%s", started,
				failed, strings.Join(log.lines(), "\n"))
		}
	})
}
