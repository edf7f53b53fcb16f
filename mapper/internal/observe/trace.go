package observe

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// A task counts what a delivery (one request of the queue) has done, for the attributes of its
// span.
type task struct{ pages, entities, failures atomic.Int64 }

type taskKey struct{}

func taskOf(ctx context.Context) *task {
	t, _ := ctx.Value(taskKey{}).(*task)
	return t
}

// Start starts the trace span for the start of a job, and returns a context with this span, the
// root of the job's trace. After the start, the caller must call the returned function with the
// start's error, or with nil.
func (ob *Observer) Start(ctx context.Context, mapper, job string) (context.Context, func(error)) {
	ctx, span := ob.tracer.Start(ctx, "scattermap start", trace.WithAttributes(mapperKey.String(mapper),
		jobKey.String(job)))
	return ctx, func(err error) { end(span, err) }
}

// Delivery starts a trace span for a delivery (one request of the queue), and returns a context
// with it. The span's name contains the path of the task. Its parent is the span in which the task
// was enqueued. If d.NewTrace is set, the span starts a new trace instead, with a link to that
// span. At the end of the delivery, the caller must call the returned function with its error.
func (ob *Observer) Delivery(ctx context.Context, path string, d tasks.Delivery) (context.Context, func(error)) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if from := trace.SpanContextFromContext(ctx); d.NewTrace && from.IsValid() {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
	}
	ctx, span := ob.tracer.Start(ctx, "scattermap "+path, options...)
	if d.RetryCount > 0 {
		span.SetAttributes(retryKey.Int(d.RetryCount))
	}
	done := new(task)
	return context.WithValue(ctx, taskKey{}, done), func(err error) {
		if n := done.pages.Load(); n > 0 && span.IsRecording() {
			span.SetAttributes(pageKey.Int64(n), entityKey.Int64(done.entities.Load()),
				failedKey.Int64(done.failures.Load()))
		}
		end(span, err)
	}
}

// end ends a span. If there is an error, the span gets the status Error. It does not get the
// error's text, which may contain data of an entity.
func end(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "see the log")
	}
	span.End()
}

// Job adds the job's attributes to the span of the delivery in ctx.
func (ob *Observer) Job(ctx context.Context, job *record.Job) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(mapperKey.String(job.Mapper), jobKey.String(job.ID))
	}
}

// Range adds a range's attributes to the span of the delivery in ctx, and counts the delivery as
// running. The caller must call ended at the delivery's end.
func (ob *Observer) Range(
	ctx context.Context, job *record.Job, r *record.Range, d tasks.Delivery, now time.Time,
) (ended func()) {
	ob.Job(ctx, job)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(rangeKey.String(r.ID), depthKey.Int64(r.Depth))
	}
	of := metric.WithAttributeSet(attribute.NewSet(mapperKey.String(job.Mapper)))
	if d.RetryCount > 0 {
		ob.retries.Add(ctx, 1, of)
	} else if !d.ScheduleTime.IsZero() {
		ob.queueWait.Record(ctx, max(0, now.Sub(d.ScheduleTime)).Seconds(), of)
	}
	ob.inFlight.Add(ctx, 1, of)
	return func() { ob.inFlight.Add(context.WithoutCancel(ctx), -1, of) }
}

// turned updates the observer's progress after the state of a job has changed.
func (ob *Observer) turned(job *record.Job, now time.Time) {
	if job.State != record.Running {
		ob.progress.ended(job.Ref().String(), job.Mapper, job.Epoch, now)
		return
	}
	ob.progress.running(job.Ref().String(), job.Mapper, job.Epoch, now, now)
}

// Looked records that the job was read as running, with some of its open ranges. A range is created
// in the commit of a page. So the newest of these ranges shows that a page was committed at this
// time or later.
func (ob *Observer) Looked(job *record.Job, open []*record.Range, now time.Time) {
	last := job.Created
	if job.RampFrom.After(last) { // after a Resume, the job had no chance to commit a page before
		last = job.RampFrom
	}
	for _, r := range open {
		if r.Created.After(last) {
			last = r.Created
		}
	}
	ob.progress.running(job.Ref().String(), job.Mapper, job.Epoch, last, now)
}

// tracePages limits the size of a trace. If a range is expected to have more full pages than this,
// the tasks of its children start new traces. A task processes two or three pages, so a trace has
// up to about a thousand spans.
const tracePages = 2500

// NewTraces reports whether the tasks of a range's children start new traces, because one trace
// would have too many spans. The argument entities is the expected number of entities in the range.
func NewTraces(job *record.Job, entities int64) bool {
	return job.PageSize > 0 && entities/job.PageSize > tracePages
}
