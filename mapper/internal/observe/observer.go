package observe

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/scattermap/scattermap/mapper/internal/store"
)

// Name is the name of scattermap's OpenTelemetry meter and tracer.
const Name = "github.com/scattermap/scattermap/mapper"

// Names of attributes of metrics and spans. No attribute has a key, a parameter or other data of an
// entity.
const (
	mapperKey = attribute.Key("scattermap.mapper")
	causeKey  = attribute.Key("scattermap.reason")

	// The following attributes are only for spans, because they have too many values for metrics.
	jobKey    = attribute.Key("scattermap.job")
	rangeKey  = attribute.Key("scattermap.range")
	depthKey  = attribute.Key("scattermap.depth")
	retryKey  = attribute.Key("scattermap.retries")
	pageKey   = attribute.Key("scattermap.pages")
	entityKey = attribute.Key("scattermap.entities")
	failedKey = attribute.Key("scattermap.failures")
)

// An Observer logs, counts and traces what a process does for its jobs. Its fields must not change
// after its first use.
type Observer struct {
	Store store.Store
	Log   *slog.Logger                  // receives a line for each change of a job's state
	Flaws *slog.Logger                  // receives warnings and errors; made by Limited
	Hook  func(context.Context, Change) // called after each change of a job's state; nil: nothing is called

	undelivered lines
	waiters     waiters

	tracer trace.Tracer

	entities, pages, failures, conflicts, retries, splits metric.Int64Counter
	inFlight                                              metric.Int64UpDownCounter
	pageTime, queueWait                                   metric.Float64Histogram

	progress progress
}

// New returns an Observer without loggers and hook. A nil provider stands for OpenTelemetry's
// global provider.
func New(meters metric.MeterProvider, tracers trace.TracerProvider) (*Observer, error) {
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	ob, meter := &Observer{tracer: tracers.Tracer(Name, trace.WithInstrumentationVersion(version()))},
		meters.Meter(Name, metric.WithInstrumentationVersion(version()))
	var failed []error
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = append(failed, err)
		return c
	}
	seconds := func(name, text string, bounds ...float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text),
			metric.WithExplicitBucketBoundaries(bounds...))
		failed = append(failed, err)
		return h
	}
	ob.entities = counter("scattermap.entities", "{entity}", "Processed entities.")
	ob.pages = counter("scattermap.pages", "{page}", "Committed pages.")
	ob.failures = counter("scattermap.failures", "{entity}", "Entities recorded as failures.")
	ob.conflicts = counter("scattermap.conflicts", "{conflict}",
		"Repeated runs of the function on an entity, because others changed the entity before the commit.")
	ob.retries = counter("scattermap.retries", "{delivery}", "Repeated deliveries of tasks of ranges.")
	ob.splits = counter("scattermap.splits", "{range}", "Ranges cut off for other tasks, by reason.")
	ob.pageTime = seconds("scattermap.page.duration", "Time from reading a page to its commit.", 0.005,
		0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
	ob.queueWait = seconds("scattermap.queue.wait",
		"Time between the due time of a range's task and its first delivery.",
		0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)
	var err error
	ob.inFlight, err = meter.Int64UpDownCounter("scattermap.tasks.in_flight", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks of ranges that run in the process now."))
	failed = append(failed, err)
	_, err = meter.Float64ObservableGauge("scattermap.job.idle", metric.WithUnit("s"),
		metric.WithDescription("Time since the last committed page of a running job; of several jobs of the mapper, "+
			"the longest."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for mapper, idle := range ob.progress.idle(time.Now()) {
				o.Observe(idle.Seconds(), metric.WithAttributes(mapperKey.String(mapper)))
			}
			return nil
		}))
	return ob, errors.Join(append(failed, err)...)
}

// Has sets the metric of a mapper's running tasks to 0, so that the metric exists before the first
// task. An operator who does not find this metric knows that metrics do not arrive.
func (ob *Observer) Has(ctx context.Context, mapper string) {
	ob.inFlight.Add(ctx, 0, metric.WithAttributes(mapperKey.String(mapper)))
}

// module is the path of this module.
const module = "github.com/scattermap/scattermap"

// version returns the version of this module in the program, or "" if the build has no version.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}

// A Page has the numbers of a page that was committed, for metrics. A page is a group of entities
// that are committed together.
type Page struct {
	Mapper, Job        string // the mapper's name, and the text of the job's Ref
	Entities, Failures int64  // numbers of entities that were processed, and that became failures
	Took               time.Duration
	CutOff             map[string]int64 // numbers of ranges that were cut off from the page's range, by reason
}

// Reasons why a new range is cut off from a range. They are values of a metric's attribute.
const (
	AtStart    = "start"   // cut at the start of the job
	BeforePage = "before"  // cut before a page, because workers are idle
	Planned    = "planned" // cut by the commit of a page, because the plan before the page said so
	Late       = "late"    // cut by the commit of a page, because this task would otherwise end late
	Failed     = "failure" // not cut, but made for a failed entity
)

// Committed adds a committed page to the metrics.
func (ob *Observer) Committed(ctx context.Context, p Page) {
	of := metric.WithAttributes(mapperKey.String(p.Mapper))
	ob.pages.Add(ctx, 1, of)
	ob.entities.Add(ctx, p.Entities, of)
	if p.Failures > 0 {
		ob.failures.Add(ctx, p.Failures, of)
	}
	ob.pageTime.Record(ctx, p.Took.Seconds(), of)
	ob.CutOff(ctx, p.Mapper, p.CutOff)
	ob.progress.committed(p.Job, p.Mapper, time.Now())
	if task := taskOf(ctx); task != nil {
		task.pages.Add(1)
		task.entities.Add(p.Entities)
		task.failures.Add(p.Failures)
	}
}

// CutOff adds to the metrics how many ranges were cut off, by reason.
func (ob *Observer) CutOff(ctx context.Context, mapper string, ranges map[string]int64) {
	for why, n := range ranges {
		if n > 0 {
			ob.splits.Add(ctx, n, metric.WithAttributes(mapperKey.String(mapper), causeKey.String(why)))
		}
	}
}

// Conflicts adds n to the metric of repeated calls of a mapper's function. A call is repeated
// because another client has changed the entity.
func (ob *Observer) Conflicts(ctx context.Context, mapper string, n int64) {
	ob.conflicts.Add(ctx, n, metric.WithAttributes(mapperKey.String(mapper)))
}
