package mapper_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestBeatenAtTheCommit has the commit of a page fail, which says nothing of the range, while
// another delivery of its task does it and goes on with what is left. The first one gives that no
// second task, and what it has made elsewhere is taken away.
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
	var bodies [][]byte // of deliveries of ranges
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
		time.Sleep(time.Second) // so that the other one ends at another time
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
		t.Errorf("%d deliveries of ranges by the queue, want that of the root: %s", len(bodies), bodies)
	}
}

// finishes reports whether a request is the commit of a page.
func finishes(req any) bool {
	commit, ok := req.(*datastorepb.CommitRequest)
	return ok && slices.ContainsFunc(commit.Mutations, func(m *datastorepb.Mutation) bool {
		e := m.GetUpdate()
		return e != nil && e.Key.Path[0].Kind == record.RangeKind && e.Properties["state"].GetStringValue() == "done"
	})
}
