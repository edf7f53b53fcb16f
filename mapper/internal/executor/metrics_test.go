package executor

import (
	"context"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// measured makes a world record its metrics. It returns a function that reads the values of
// counters and the sums of histograms, by name and cause.
func measured(w *testworld.World) (read func() map[string]float64) {
	w.Helper()
	reader := sdkmetric.NewManualReader()
	ob, err := observe.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil)
	if err != nil {
		w.Fatal(err)
	}
	ob.Store, ob.Log, ob.Flaws = w.Jobs.Store, w.Jobs.Log, w.Jobs.Log
	w.Jobs.Observer = ob
	return func() map[string]float64 {
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.WithoutCancel(w.Context()), &all); err != nil {
			w.Fatal(err)
		}
		sums := make(map[string]float64)
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				switch data := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range data.DataPoints {
						why, _ := p.Attributes.Value("scattermap.reason")
						sums[strings.Trim(m.Name+" "+why.AsString(), " ")] += float64(p.Value)
					}
				case metricdata.Histogram[float64]:
					for _, p := range data.DataPoints {
						sums[m.Name] += p.Sum
					}
				}
			}
		}
		return sums
	}
}

// TestMetrics checks the metrics of a job with slow entities at its end. They show how often ranges
// were cut and why, and how long pages took. At the end, no delivery must be under way.
func TestMetrics(t *testing.T) {
	inWorld(t, 300, function.Update, func(a *testworld.Call) error {
		if a.N += 1000; a.ID > 200 {
			time.Sleep(500 * time.Millisecond)
		}
		return nil
	}, func(w *testworld.World, _ *Executor) {
		read := measured(w)
		j := w.NewJob("j", "m")
		j.Workers, j.PageSize, j.PageTime = 4, 100, int64(20*time.Second)
		w.Begin(j)
		time.Sleep(50 * time.Second)
		if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 300 processed") {
			w.Error(got)
		}
		all := read()
		if all["scattermap.entities"] != 300 || all["scattermap.tasks.in_flight"] != 0 ||
			all["scattermap.splits start"] != 3 ||
			all["scattermap.splits late"] < 3 || all["scattermap.splits behind"] > 0 {
			w.Errorf("%v", all)
		}
		if took := all["scattermap.page.duration"]; took < 49 || took > 51 { // about a hundred slow entities
			w.Errorf("pages take %v seconds", took)
		}
	})
}

// TestInFlight checks that a delivery without work counts as under way only until it ends.
func TestInFlight(t *testing.T) {
	inWorld(t, 5, function.Update, nil, func(w *testworld.World, x *Executor) {
		read, j := measured(w), w.NewJob("j", "m")
		j.State = record.Paused
		r := j.RootRange()
		insert(w, j, r)
		if err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(r, j).Body}); err != nil {
			w.Error(err)
		}
		if n, ok := read()["scattermap.tasks.in_flight"]; n != 0 || !ok {
			w.Errorf("%v deliveries are under way, counted %v", n, ok)
		}
	})
}
