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
	Job   *record.Job     // as it is since
	From  record.JobState // the state before; empty for a new job
	Cause string          // nothing of an entity
	By    string          // who asked for it; empty: nobody did, or nobody knows
	Why   string          // for which reason; empty: none is known
	Time  time.Time

	Totals    record.Totals // what the job has done so far
	Counted   bool          // they are known,
	Estimated bool          // about
}

// The times that a change takes beyond its commit, at most.
const (
	countTime = 10 * time.Second
	hookTime  = 10 * time.Second
)

// Changed says that a job is in another state. That is committed: nothing here fails, or takes
// long.
func (ob *Observer) Changed(ctx context.Context, from record.JobState, job *record.Job, cause string) {
	ob.turned(job, time.Now())
	defer ob.waiters.wake(job.ID) // after the log and the hook
	ctx = context.WithoutCancel(ctx)
	c := Change{Job: job, From: from, Cause: cause, By: By(ctx), Why: Why(ctx), Time: time.Now()}
	ob.count(ctx, &c)
	ob.flush(ctx, c.Time.Add(window))
	if handler := ob.Log.Handler(); handler.Enabled(ctx, level(job)) {
		// of the change: who counts first, writes first
		line := slog.NewRecord(c.Time, level(job), "job "+string(job.State), 0)
		line.AddAttrs(attrs(c)...)
		_ = handler.Handle(ctx, line) // as slog's own methods do
	}
	if ob.Hook != nil {
		ob.call(ctx, c)
	}
}

// count adds up what the job has done so far: as a status does. A new one has done nothing.
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

// level returns how much a state matters to an operator.
func level(job *record.Job) slog.Level {
	switch {
	case job.State == record.Failed:
		return slog.LevelError
	case job.State == record.SucceededWithFailures, job.State == record.Paused && (job.Limited || job.Poor):
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// attrs returns what the line about a change has.
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

// call calls the hook, and waits for it as long as it may take. It runs in a goroutine of its own,
// so that it harms nobody who waits for it.
func (ob *Observer) call(ctx context.Context, c Change) {
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer func() {
			if r := recover(); r != nil { // its text may be of an entity
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
			ob.Flaws.LogAttrs(ctx, slog.LevelWarn, "EngineOptions.OnStateChange has not returned; the job goes on without it",
				slog.Duration("after", hookTime))
		}
	}
	cancel()
}

// Failing says that entities of a page have failed: how many are tried again, how many are recorded
// as failures, and of which kinds their errors are. Their keys and errors are in the records. The
// lines of entities that are tried again by themselves are limited apart: there may be many for
// each page.
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

// Undelivered says what the queue says of a job's tasks, once a minute for each job.
func (ob *Observer) Undelivered(ctx context.Context, job *record.Job, complaint string) {
	if _, ok := ob.undelivered.admit(job.ID, time.Now(), 1); ok {
		ob.Log.LogAttrs(ctx, slog.LevelWarn, "tasks are not delivered", slog.String("job", job.ID),
			slog.String("mapper", job.Mapper), slog.String("cause", complaint))
	}
}

// Flush says how many lines were left out, where no line that followed has said so within the
// minute.
func (ob *Observer) Flush(ctx context.Context) { ob.flush(ctx, time.Now()) }

// flush is Flush as of a time.
func (ob *Observer) flush(ctx context.Context, now time.Time) {
	if h, ok := ob.Flaws.Handler().(limiter); ok {
		for message, n := range h.lines.owed(now) {
			ob.Log.LogAttrs(ctx, slog.LevelWarn, "lines were left out", slog.String("message", message),
				slog.Int("left_out", n))
		}
	}
}

// Noted says that a job was changed, and is in the same state.
func (ob *Observer) Noted(ctx context.Context, job *record.Job, cause string) {
	ob.Log.LogAttrs(ctx, slog.LevelInfo, "job changed",
		attrs(Change{Job: job, From: job.State, Cause: cause, By: By(ctx), Why: Why(ctx), Time: time.Now()})...)
}

type (
	callerKey struct{}
	reasonKey struct{}
)

// WithBy returns a context of what somebody asks for.
func WithBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, callerKey{}, cut(who, 200))
}

// By returns who has asked, or nothing.
func By(ctx context.Context) string {
	who, _ := ctx.Value(callerKey{}).(string)
	return who
}

// WithWhy returns a context of what somebody asks for, for a reason.
func WithWhy(ctx context.Context, why string) context.Context {
	return context.WithValue(ctx, reasonKey{}, cut(why, 500))
}

// Why returns for which reason somebody has asked, or nothing.
func Why(ctx context.Context) string {
	why, _ := ctx.Value(reasonKey{}).(string)
	return why
}

// cut returns the first bytes of a text.
func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }
