package observe

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Change is one change of a job's state.
type Change struct {
	Job   *record.Job     // the job after the change
	From  record.JobState // the job's state before the change; empty: the job is new
	Cause string          // a short reason of the change, which never contains data of an entity
	By    string          // the operator who requested the change; empty: none, or unknown
	Why   string          // the operator's reason; empty: none, or unknown
	Time  time.Time

	Totals    record.Totals // the job's totals so far
	Counted   bool          // whether Totals is known
	Estimated bool          // whether Totals is an estimate
}

// Limits of the time that [Observer.Changed] takes. One is for counting the job's totals, the other
// for the hook.
const (
	countTime = 10 * time.Second
	hookTime  = 10 * time.Second
)

// Changed reports that a job's state has changed, from the state from. Call it after the commit of
// the change. It logs a line and calls the hook. It returns no error, and takes at most 20 seconds.
func (ob *Observer) Changed(ctx context.Context, from record.JobState, job *record.Job, cause string) {
	ob.turned(job, time.Now())
	defer ob.waiters.wake(job.ID) // deferred, so that it comes after the log and the hook
	ctx = context.WithoutCancel(ctx)
	c := Change{Job: job, From: from, Cause: cause, By: By(ctx), Why: Why(ctx), Time: time.Now()}
	ob.count(ctx, &c)
	ob.flush(ctx, c.Time.Add(window))
	if handler := ob.Log.Handler(); handler.Enabled(ctx, level(job)) {
		// The line has the time of the change, which is earlier than the end of the count.
		line := slog.NewRecord(c.Time, level(job), "job "+string(job.State), 0)
		line.AddAttrs(attrs(c)...)
		_ = handler.Handle(ctx, line) // the error is ignored, as in slog's own methods
	}
	if ob.Hook != nil {
		ob.call(ctx, c)
	}
}

// count sets the totals in the change c to the numbers that the job's status shows. The totals of a
// new job are zero.
func (ob *Observer) count(ctx context.Context, c *Change) {
	if c.From == "" {
		c.Counted = true
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	var err error
	if len(c.Job.Totals) > 0 {
		c.Totals, err = c.Job.RecordedTotals()
	} else {
		c.Totals, c.Estimated, err = ob.Store.SampleTotals(ctx, c.Job)
	}
	c.Counted = err == nil
}

// level returns the level of the log line about a job that has just changed its state.
func level(job *record.Job) slog.Level {
	switch {
	case job.State == record.Failed:
		return slog.LevelError
	case job.State == record.SucceededWithFailures, job.State == record.Paused && (job.Limited || job.OverBudget):
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// attrs returns the attributes of the log line about a change.
func attrs(c Change) []slog.Attr {
	all := []slog.Attr{slog.String("job", c.Job.ID), slog.String("mapper", c.Job.Mapper)}
	add := func(key, text string) {
		if text != "" {
			all = append(all, slog.String(key, text))
		}
	}
	add("from", string(c.From))
	add("cause", c.Cause)
	add("by", c.By)
	add("why", c.Why)
	if limit, err := c.Job.RateLimit(); err == nil && c.Job.State == record.Running {
		add("rate", limit.Says(c.Time.Sub(c.Job.RampBegan())))
	}
	if c.Counted && c.From != "" {
		all = append(all, slog.Int64("processed", c.Totals.Processed), slog.Int64("failures", c.Totals.Failures),
			slog.Bool("estimated", c.Estimated))
	}
	if !c.Job.Ended.IsZero() {
		all = append(all, slog.Duration("after", c.Job.Ended.Sub(c.Job.Created)))
	}
	return all
}

// call calls the hook in another goroutine, and waits for up to hookTime until it returns. So a
// hook that panics or hangs does not harm the caller.
func (ob *Observer) call(ctx context.Context, c Change) {
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer func() {
			if r := recover(); r != nil { // the panic's text may contain data of an entity
				ob.Flaws.LogAttrs(ctx, slog.LevelWarn, "EngineOptions.OnStateChange has panicked",
					slog.String("panic", fmt.Sprintf("%T", r)), slog.String("stack", string(debug.Stack())))
			}
		}()
		ob.Hook(ctx, c)
	}()
	select {
	case <-returned:
	case <-ctx.Done():
		select {
		case <-returned:
		default:
			ob.Flaws.LogAttrs(ctx, slog.LevelWarn,
				"EngineOptions.OnStateChange has not returned; the job goes on without it",
				slog.Duration("after", hookTime))
		}
	}
	cancel()
}

// Failing logs that entities of a page failed. The argument again is the number of entities that
// will be retried, and recorded the number that became failures. The argument kinds describes their
// errors. The line has no keys and no error texts.
//
// If the range has a single entity, which has failed before, the line has another message. So these
// lines are limited separately: a page can be followed by many of them.
func (ob *Observer) Failing(
	ctx context.Context, job *record.Job, r *record.Range, again, recorded int64, kinds string,
) {
	message := "entities failed"
	if r.Alone {
		message = "an entity failed again"
	}
	ob.Flaws.LogAttrs(ctx, slog.LevelWarn, message, slog.String("job", job.ID), slog.String("mapper", job.Mapper),
		slog.String("range", r.ID),
		slog.Int64("tried_again", again), slog.Int64("recorded", recorded), slog.String("kinds", kinds))
}

// Undelivered logs why the queue can't deliver a job's tasks, at most once a minute for each job.
func (ob *Observer) Undelivered(ctx context.Context, job *record.Job, complaint string) {
	if _, ok := ob.undelivered.admit(job.ID, time.Now(), 1); ok {
		ob.Log.LogAttrs(ctx, slog.LevelWarn, "tasks are not delivered", slog.String("job", job.ID),
			slog.String("mapper", job.Mapper), slog.String("cause", complaint))
	}
}

// Flush logs how many lines [Limited] has left out in past minutes. It skips numbers that a later
// line has already reported.
func (ob *Observer) Flush(ctx context.Context) { ob.flush(ctx, time.Now()) }

// flush does what Flush does, as if the present time were now.
func (ob *Observer) flush(ctx context.Context, now time.Time) {
	if h, ok := ob.Flaws.Handler().(limiter); ok {
		for message, n := range h.lines.owed(now) {
			ob.Log.LogAttrs(ctx, slog.LevelWarn, "lines were left out", slog.String("line", message),
				slog.Int("left_out", n))
		}
	}
}

// Noted logs a change of a job that does not change its state, such as a new rate limit.
func (ob *Observer) Noted(ctx context.Context, job *record.Job, cause string) {
	ob.Log.LogAttrs(ctx, slog.LevelInfo, "job changed",
		attrs(Change{Job: job, From: job.State, Cause: cause, By: By(ctx), Why: Why(ctx), Time: time.Now()})...)
}

type (
	callerKey struct{}
	reasonKey struct{}
)

// WithBy returns a context that has the operator who makes a request, cut to 200 bytes.
func WithBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, callerKey{}, cut(who, 200))
}

// By returns the operator who makes the request of this context, or "" if the operator is unknown.
func By(ctx context.Context) string {
	who, _ := ctx.Value(callerKey{}).(string)
	return who
}

// WithWhy returns a context that has the operator's reason for a request, cut to 500 bytes.
func WithWhy(ctx context.Context, why string) context.Context {
	return context.WithValue(ctx, reasonKey{}, cut(why, 500))
}

// Why returns the operator's reason for the request of this context, or "".
func Why(ctx context.Context) string {
	why, _ := ctx.Value(reasonKey{}).(string)
	return why
}

// cut returns the first bytes of a text, up to most bytes, without a broken character at the end.
func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }
