package mapper_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// sheet is the type of the entities in the tests of schedules.
type sheet struct{ N float64 }

// setSheet is the mapper of the schedules in these tests.
var setSheet = mapper.Update("set-sheet", func(_ context.Context, e *mapper.Entity[sheet], n float64) error {
	time.Sleep(time.Second)
	e.Value.N = n
	return nil
})

// due is the time of the first tick in these tests.
var due = time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)

// tickSheets calls Tick of a schedule of setSheet.
func tickSheets(
	ctx context.Context, e *mapper.Engine, s *mapper.Schedule[float64], at time.Time, n float64, o *mapper.StartOptions,
) (*mapper.TickResult, error) {
	return s.Tick(ctx, e, at, mapper.Query{Kind: "Sheet"}, n, o)
}

// withSheets runs a test with an engine that has the mapper setSheet and a schedule of it, over 20
// entities.
func withSheets(
	t *testing.T, s *mapper.Schedule[float64], o mappertest.Options, test func(t *testing.T, w *mappertest.Env),
) {
	t.Helper()
	o.Schedules = []mapper.AnySchedule{s}
	mappertest.Run(t, []mapper.AnyMapper{setSheet}, &o, func(t *testing.T, w *mappertest.Env) {
		var keys []*datastore.Key
		for id := range int64(20) {
			keys = append(keys, datastore.IDKey("Sheet", id+1, nil))
		}
		if _, err := w.Client.PutMulti(t.Context(), keys, make([]sheet, len(keys))); err != nil {
			t.Fatal(err)
		}
		test(t, w)
	})
}

// another returns an engine of another process, which has the same mapper and schedule. The
// interceptor gets all calls of its Datastore client.
func another(
	t *testing.T, w *mappertest.Env, s *mapper.Schedule[float64], intercept grpc.UnaryClientInterceptor,
) *mapper.Engine {
	t.Helper()
	client, err := w.NewClient(mapper.ClientOption(),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	e, err := mapper.NewEngine(client, w.Engine.Queue(), &mapper.EngineOptions{
		Mappers: []mapper.AnyMapper{setSheet}, Schedules: []mapper.AnySchedule{s},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestTickOverlaps calls Tick while a job of the same mapper runs over the same kind. The run must
// start only with AllowOverlap.
func TestTickOverlaps(t *testing.T) {
	s := mapper.NewSchedule("sheets", setSheet, mapper.OverlapSkip)
	withSheets(t, s, mappertest.Options{}, func(t *testing.T, w *mappertest.Env) {
		if _, err := setSheet.Start(t.Context(), w.Engine, mapper.Query{Kind: "Sheet"}, 1,
			&mapper.StartOptions{ID: "by-hand"}); err != nil {
			t.Fatal(err)
		}
		for i, want := range []mapper.TickOutcome{mapper.TickSkipped, mapper.TickStarted} {
			at := due.Add(time.Duration(i) * time.Hour)
			got, err := tickSheets(t.Context(), w.Engine, s, at, 2,
				&mapper.StartOptions{AllowOverlap: want == mapper.TickStarted})
			if err != nil || got.Outcome != want {
				t.Errorf("%+v, %v, want %s", got, err, want)
			}
		}
		time.Sleep(time.Hour) // until both jobs have ended
	})
}

// TestTickSpans checks that the trace of a tick has an ended span, which says whether the run has
// started. The parameters of one of the ticks have no JSON, and its error must say so.
func TestTickSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	s := mapper.NewSchedule("sheets", setSheet, mapper.OverlapSkip)
	withSheets(t, s, mappertest.Options{Engine: mapper.EngineOptions{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}}, func(t *testing.T, w *mappertest.Env) {
		ended := func() (all []sdktrace.ReadOnlySpan) {
			for _, span := range spans.Ended() {
				if span.Name() == "scattermap start" {
					all = append(all, span)
				}
			}
			return all
		}
		_, err := tickSheets(t.Context(), w.Engine, s, due, math.NaN(), nil)
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "NaN") {
			t.Errorf("parameters without JSON: %v", err)
		}
		_, err = s.Tick(t.Context(), w.Engine, due, mapper.Query{Kind: "Nothing"}, 1, nil)
		if all := ended(); err == nil || len(all) != 1 || all[0].Status().Code != codes.Error {
			t.Errorf("the spans of a tick over nothing: %+v, %v", all, err)
		}
		got, err := tickSheets(t.Context(), w.Engine, s, due, 1, nil)
		if all := ended(); err != nil || len(all) != 2 || all[1].Status().Code == codes.Error {
			t.Fatalf("the spans of a tick: %+v, %v", all, err)
		}
		if _, err := got.Job.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestTickInTwoProcesses calls Tick in two processes. Both find that the run may start. Then the
// second one starts it first. Both must return that the tick has started this run.
func TestTickInTwoProcesses(t *testing.T) {
	s := mapper.NewSchedule("sheets", setSheet, mapper.OverlapSkip)
	withSheets(t, s, mappertest.Options{}, func(t *testing.T, w *mappertest.Env) {
		var others atomic.Int64
		e := another(t, w, s, func(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if strings.HasSuffix(method, "/BeginTransaction") && others.Add(1) == 1 {
				got, err := tickSheets(ctx, w.Engine, s, due, 1, nil)
				if err != nil || got.Outcome != mapper.TickStarted {
					t.Errorf("the second process: %+v, %v", got, err)
				}
			}
			return invoke(ctx, method, req, resp, conn, opts...)
		})
		got, err := tickSheets(t.Context(), e, s, due, 1, nil)
		if err != nil || got.Outcome != mapper.TickStarted || got.Job.ID != s.JobID(due) || others.Load() == 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		if status, err := got.Job.Wait(t.Context()); err != nil || status.Processed != 20 {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

// TestTickReadsFail makes one read of a schedule's record fail. Tick or Advance must return this
// error, so that the caller repeats the call.
func TestTickReadsFail(t *testing.T) {
	tick := func(t *testing.T, e *mapper.Engine, s *mapper.Schedule[float64]) error {
		_, err := tickSheets(t.Context(), e, s, due.Add(time.Hour), 1, nil)
		return err
	}
	advance := func(t *testing.T, e *mapper.Engine, s *mapper.Schedule[float64]) error {
		return s.Advance(t.Context(), e)
	}
	const waits, elsewhere = `{"at":"2000-01-02T00:00:00Z","query":{"kind":"Sheet"},"params":1,"options":{}}`,
		`{"at":"2000-01-02T00:00:00Z","query":{"kind":"Sheet"},"params":1,"options":{"queue":"elsewhere"}}`
	for _, c := range []struct {
		name   string
		queued string // the tick that waits
		call   func(t *testing.T, e *mapper.Engine, s *mapper.Schedule[float64]) error
		fails  int64 // which read fails
	}{
		{"of a tick", "", tick, 1},
		{"after an earlier tick that waits for another queue", elsewhere, tick, 3},
		{"of Advance", waits, advance, 1},
		{"of the run that Advance would start", waits, advance, 2},
	} {
		s := mapper.NewSchedule("sheets", setSheet, mapper.OverlapQueue)
		withSheets(t, s, mappertest.Options{}, func(t *testing.T, w *mappertest.Env) {
			if c.queued != "" {
				if _, err := w.Client.Put(t.Context(), record.ScheduleKey("sheets"), &record.Schedule{Tick: due,
					Outcome: record.TickQueued, Queued: []byte(c.queued), Waits: due}); err != nil {
					t.Fatal(err)
				}
			}
			var reads atomic.Int64
			e := another(t, w, s, func(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if q, ok := req.(*pb.LookupRequest); ok && q.GetReadOptions().GetTransaction() == nil {
					kind := q.Keys[0].GetPath()[0].GetKind()
					if kind == record.ScheduleKind && reads.Add(1) == c.fails {
						return status.Error(grpccodes.PermissionDenied, "no role")
					}
				}
				return invoke(ctx, method, req, resp, conn, opts...)
			})
			err := c.call(t, e, s)
			if err == nil || !strings.Contains(err.Error(), "no role") || reads.Load() != c.fails {
				t.Errorf("a failed read %s: %v, after %d reads", c.name, err, reads.Load())
			}
			if err := c.call(t, e, s); err != nil {
				t.Errorf("the second call, after a failed read %s: %v", c.name, err)
			}
			time.Sleep(time.Hour) // until the runs have ended
		})
	}
}
