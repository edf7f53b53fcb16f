package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// observed returns a world whose engine reports its metrics to a reader, and its traces to a
// recorder of spans.
func observed(
	t *testing.T, s setting, mappers ...mapper.AnyMapper,
) (*world, *sdkmetric.ManualReader, *tracetest.SpanRecorder) {
	t.Helper()
	w := newWorld(t, s)
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	if s.log == nil {
		s.log = t.Output()
	}
	var err error
	w.engine, err = mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{
		Mappers: mappers, Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = w.engine.Handler()
	return w, reader, spans
}

// connected checks that each span's parent exists, and that each span without a parent is linked to
// another span, except for the start of the job. It returns the number of spans in each trace,
// without the spans of sweeps.
func connected(t *testing.T, spans []sdktrace.ReadOnlySpan) map[trace.TraceID]int {
	t.Helper()
	known, traces := make(map[trace.SpanID]bool), make(map[trace.TraceID]int)
	for _, s := range spans {
		known[s.SpanContext().SpanID()] = true
	}
	for _, s := range spans {
		switch parent := s.Parent(); {
		case parent.IsValid() && known[parent.SpanID()] && parent.TraceID() == s.SpanContext().TraceID():
		case parent.IsValid():
			t.Errorf("%s has a parent that is not there", s.Name())
		case s.Name() == "scattermap start":
		case len(s.Links()) != 1 || !known[s.Links()[0].SpanContext.SpanID()]:
			t.Errorf("%s has neither a parent nor a link: %v", s.Name(), s.Links())
		}
		if s.Name() != "scattermap sweep" {
			traces[s.SpanContext().TraceID()]++
		}
		for _, a := range s.Attributes() {
			if !strings.HasPrefix(string(a.Key), "scattermap.") || strings.Contains(a.Value.String(), "user-") {
				t.Errorf("%s has %s: %s", s.Name(), a.Key, a.Value.String())
			}
		}
	}
	return traces
}

// TestOneTrace checks that all tasks of a small job are in one connected trace, and that the spans
// of its sweeps are linked to it.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, spans := observed(t, setting{queue: few(20)}, steadyCredit)
		bridge.Portion(w.engine, 100, time.Minute) // so that the job ends in a task
		const n = 3000
		w.putAccounts(names(n))
		job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one", PageSize: 50})
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		time.Sleep(5 * time.Minute) // until the last sweep
		w.settle()
		traces := connected(t, spans.Ended())
		if len(traces) != 1 {
			t.Errorf("%d traces: %v", len(traces), traces)
		}
		names, entities := make(map[string]int), int64(0)
		for _, s := range spans.Ended() {
			names[s.Name()]++
			for _, a := range s.Attributes() {
				if a.Key == "scattermap.entities" {
					entities += a.Value.AsInt64()
				}
			}
		}
		if names["scattermap start"] != 1 || names["scattermap range"] < 20 || names["scattermap finalize"] != 1 ||
			names["scattermap sweep"] == 0 || entities != n {
			t.Errorf("spans %v, of %d entities", names, entities)
		}
	})
}

// TestManyTraces checks that a range which is cut into many parts gives each part's task a trace of
// its own, with a link.
func TestManyTraces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, spans := observed(t, setting{queue: few(20)}, addCredit)
		w.putAccounts(names(4000))
		if s := w.wait(w.start(10, &mapper.StartOptions{ID: "many", PageSize: 1})); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		w.settle()
		if traces := connected(t, spans.Ended()); len(traces) < 10 {
			t.Errorf("%d traces: %v", len(traces), traces)
		}
	})
}

// documented returns the names and the attributes of the metrics in docs/metrics.md.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	row := regexp.MustCompile("(?m)^\\| `(scattermap\\.[a-z_.]+)` \\| (?:counter|up-down counter|histogram|gauge),")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = true
	}
	return all
}

// TestMetrics runs a job in which everything happens that is measured. The engine must report every
// documented metric, and no other. The only attributes may be the mapper and, for splits, the
// reason. A process that has done nothing must report its metrics, too. Otherwise an alarm could
// not notice that a process does not report.
func TestMetrics(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var first, refused atomic.Bool
		var w *world
		busy := mapper.Update("busy", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			switch {
			case a.Key.Name == names(3)[2].Name:
				return mapper.Permanent(errors.New("broken"))
			// another client changes the account before the function does
			case a.Key.Name == names(2)[1].Name && first.CompareAndSwap(false, true):
				if _, err := w.client.Put(context.WithoutCancel(ctx), a.Key,
					&account{Balance: 7, Owner: "another"}); err != nil {
					return err
				}
			}
			time.Sleep(20 * time.Millisecond)
			a.Value.Balance++
			return nil
		})
		var reader *sdkmetric.ManualReader
		w, reader, _ = observed(t, setting{queue: few(20)}, busy)
		if m := read(t, reader)["scattermap.tasks.in_flight"]; !m.there || m.value != 0 {
			t.Errorf("before the first job: in flight %+v", m)
		}
		own := w.handler
		w.handler = refuseOnce(own, &refused)
		const n = 3000
		w.putAccounts(names(n))
		job, err := busy.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "busy", PageSize: 50})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		inFlight, idle := read(t, reader)["scattermap.tasks.in_flight"], read(t, reader)["scattermap.job.idle"]
		if inFlight.value < 2 || !idle.there || idle.value > 1.1 {
			t.Errorf("in the middle: in flight %+v, idle %+v", inFlight, idle)
		}
		s, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.settle()
		got, want := read(t, reader), documented(t)
		if len(want) != 10 {
			t.Errorf("documented are %v", want)
		}
		for name := range want {
			if name != "scattermap.job.idle" && !got[name].there {
				t.Errorf("no %s is told", name)
			}
		}
		for name, m := range got {
			if !want[name] {
				t.Errorf("%s is not documented", name)
			}
			slices.Sort(m.attributes)
			allowed := []string{"scattermap.mapper=busy"}
			if name == "scattermap.splits" {
				allowed = append(allowed, "scattermap.reason=")
			}
			for _, a := range m.attributes {
				if !slices.ContainsFunc(allowed, func(prefix string) bool { return strings.HasPrefix(a, prefix) }) {
					t.Errorf("%s has the attribute %s", name, a)
				}
			}
		}
		for name, want := range map[string]float64{
			"scattermap.entities": float64(s.Processed), "scattermap.pages": float64(s.Pages), "scattermap.failures": 1,
			"scattermap.tasks.in_flight": 0,
			"scattermap.page.duration":   float64(s.Pages), "scattermap.retries": 1,
		} {
			if got[name].value != want {
				t.Errorf("%s is %v, want %v", name, got[name].value, want)
			}
		}
		if got["scattermap.conflicts"].value < 1 || got["scattermap.splits"].value < 10 ||
			got["scattermap.queue.wait"].value < 10 {
			t.Errorf("conflicts %v, splits %v, waits %v", got["scattermap.conflicts"], got["scattermap.splits"],
				got["scattermap.queue.wait"])
		}
		if got["scattermap.job.idle"].there {
			t.Errorf("a job that has ended is idle: %v", got["scattermap.job.idle"])
		}
	})
}

// TestIdle checks the metric with the time since a job's last page. It must grow while the job is
// stuck, as soon as some process has read the job, and not while the job is paused. Package observe
// has the rules.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, reader, _ := observed(t, setting{}, steadyCredit)
		w.putAccounts(names(100))
		client := w.tasksClient()
		if _, err := client.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queueName}); err != nil {
			t.Fatal(err)
		}
		job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "idle", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		idle := func(what string, least, most float64) {
			t.Helper()
			m := read(t, reader)["scattermap.job.idle"]
			if !m.there {
				m.value = -1
			}
			if m.value < least || m.value > most {
				t.Errorf("%s: idle for %v s", what, m.value)
			}
		}
		time.Sleep(10 * time.Minute)
		idle("nobody looks", -1, -1)
		if err := w.engine.ReviveJobs(t.Context()); err != nil { // as a schedule does
			t.Fatal(err)
		}
		idle("after ten minutes", 9*60, 11*60)
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		idle("paused", -1, -1)
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		idle("resumed", 0, 5)
		if _, err := client.ResumeQueue(t.Context(), &cloudtaskspb.ResumeQueueRequest{Name: queueName}); err != nil {
			t.Fatal(err)
		}
		w.wait(job)
	})
}

// A measured is the present value of a metric.
type measured struct {
	there      bool
	value      float64 // the sum over its series; for a histogram, the number of recordings
	attributes []string
}

// read returns the current values of all metrics.
func read(t *testing.T, reader *sdkmetric.ManualReader) map[string]measured {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]measured)
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			v := measured{}
			add := func(value float64, set interface {
				Encoded(attribute.Encoder) string
			}) {
				v.there = true
				v.value += value
				v.attributes = append(v.attributes, strings.Split(set.Encoded(attribute.DefaultEncoder()), ",")...)
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(float64(p.Value), &p.Attributes)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(p.Value, &p.Attributes)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(float64(p.Count), &p.Attributes)
				}
			default:
				t.Errorf("%s has %T", m.Name, d)
			}
			all[m.Name] = v
		}
	}
	return all
}

// refuseOnce returns a handler that refuses one delivery of a range, and passes the others on.
func refuseOnce(own http.Handler, refused *atomic.Bool) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/range") && n.Add(1) > 5 && refused.CompareAndSwap(false, true) {
			rw.WriteHeader(http.StatusInternalServerError)
			return
		}
		own.ServeHTTP(rw, r)
	})
}

// TestNoFailureUnnoticed waits for jobs like a program that looks only at the error of Wait. It
// must get an error for each job that has not done all its work, and for no other. The JSON of the
// status must show the same.
func TestNoFailureUnnoticed(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *mapper.Status, want ...string) {
		t.Helper()
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		sent := new(mapper.Status)
		if err := json.Unmarshal(text, sent); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*mapper.Status{s, sent} {
			err := s.Err()
			if (err != nil) != (len(want) > 0) {
				t.Errorf("a job that is %q: %v", s.State, err)
			}
			for _, part := range want {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("a job that is %q: %v, want %q", s.State, err, part)
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, addCredit, failing77)
		w.putAccounts(names(500))
		start := func(m, id string, limit int) *mapper.Job {
			job, err := w.engine.StartByName(t.Context(), m, mapper.Query{Kind: "Account"}, json.RawMessage(`{}`),
				&mapper.StartOptions{ID: id, PageSize: 50, FailureLimit: limit})
			w.must(err)
			return job
		}
		wait := func(job *mapper.Job) *mapper.Status {
			s, err := job.Wait(t.Context())
			w.must(err)
			return s
		}
		check(t, wait(start(addCredit.Name(), "good", 0)))
		check(t, wait(start(failing77.Name(), "failures", 0)), "job failures", "5 of its entities", "Job.Retry")
		limited := start(failing77.Name(), "limited", 1)
		s := wait(limited)
		if s.State != mapper.StatePaused || !s.Limited {
			t.Errorf("a job that its limit has paused: %+v", s)
		}
		check(t, s, "job limited", "paused by a limit", s.Error)

		poor, err := w.engine.StartByName(t.Context(), addCredit.Name(), mapper.Query{Kind: "Account"},
			json.RawMessage(`{"Amount": 1}`), &mapper.StartOptions{ID: "poor", PageSize: 50, AllowOverlap: true,
				Budget: mapper.Budget{Operations: 2200}})
		w.must(err)
		if s = wait(poor); s.State != mapper.StatePaused || !s.Limited || s.Phase != mapper.PhaseOverBudget &&
			s.Phase != mapper.PhaseDraining {
			t.Errorf("a job that its budget has paused: %+v", s)
		}
		check(t, s, "job poor", "paused by a limit", s.Error)

		slow := start(slowCredit.Name(), "slow", 0)
		check(t, w.status(slow))
		time.Sleep(100 * time.Millisecond)
		if err := slow.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(slow); s.State != mapper.StatePaused || s.Limited {
			t.Errorf("the status of a paused job is %+v", s)
		}
		check(t, w.status(slow))
		if err := slow.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(t, wait(slow), "job slow", "aborted")
	})
	check(t, &mapper.Status{ID: "j", State: mapper.StateFailed, Error: "no attempts are left"}, "job j",
		"no attempts are left")
}

// TestPrices runs an engine with prices other than the defaults. Plans, budgets, and the cost of a
// job in its status and in lists must use them.
func TestPrices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, addCredit), t.Context()
		w.putAccounts(names(500))
		prices := billing.Prices{ReadsPer100K: 1000, WritesPer100K: 2000, TaskOpsPerMillion: 3000}
		dear, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
			Prices: prices})
		if err != nil {
			t.Fatal(err)
		}
		q := mapper.Query{Kind: "Account"}
		plan, err := addCredit.Plan(ctx, dear, q, nil)
		if err != nil || plan.Dollars != prices.Dollars(plan.Usage) || dear.Prices() != prices ||
			w.engine.Prices() != billing.NAM5 {
			t.Errorf("a plan %+v, %v", plan, err)
		}
		// At the default prices, this budget would be enough.
		_, err = addCredit.Start(ctx, dear, q, credit{1}, &mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}})
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "Budget") {
			t.Errorf("a start with a budget for no page: %v", err)
		}
		job := w.start(1, &mapper.StartOptions{ID: "j", Budget: mapper.Budget{Dollars: 1}})
		cheap, other := w.wait(job), w.status(dear.Job("j"))
		jobs, _, err := dear.JobsPage(ctx, nil, "")
		if err != nil || cheap.Dollars <= 0 || cheap.Dollars > 0.1 || other.Dollars < 5 ||
			jobs[0].Dollars != other.Dollars {
			t.Errorf("the job costs $%v and $%v, and in the list %+v, %v", cheap.Dollars, other.Dollars, jobs, err)
		}
		for _, price := range []float64{-1, math.NaN(), math.Inf(1)} {
			_, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
				Prices: billing.Prices{ReadsPer100K: 1, SmallOpsPer100K: price}})
			if !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("a price of %v: %v", price, err)
			}
		}
	})
}
