package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// giveUp decides what becomes of a range whose delivery failed. What passes by itself is up to the
// queue, which delivers the task again. A refusal is tried again by another task, later, as often
// as the job's back-off says; then the job fails, and keeps what it has recorded.
func (d *delivery) giveUp(ctx context.Context, cause error) (standing, error) {
	cause = fmt.Errorf("job %s: range %s: %w", d.job.ID, d.record.ID, cause)
	if !fault.IsFatal(cause) && !fault.Refused(cause) {
		return ours, cause
	}
	last, later := false, false
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		refusal := fault.Refusal{}
		if later = errors.As(cause, &refusal) && refusal.Later; later {
			r.Later(laterDelay(r, refusal.After), time.Now())
		} else {
			last = r.Refuse(d.job, fault.After(cause), fault.IsFatal(cause), time.Now())
		}
		r.Alive(d.turn.mark)
		r.Calm() // this task is over
		return nil, nil
	})
	switch {
	case err != nil:
		return ours, errors.Join(cause, err)
	case s == changed:
		return ours, cause // whoever has cut it did more than this delivery
	case s != ours:
		return s, nil
	}
	d.turn.mark = "" // it is not there any more
	if last {
		if over, err := d.fail(ctx, cause); err != nil || over {
			return ours, err
		}
	}
	if err := d.x.Queue.Enqueue(ctx, body.TaskOf(d.record, d.job)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return ours, fmt.Errorf("enqueue range %s of job %s again: %w", d.record.ID, d.job.ID, err)
	}
	if later {
		showLater(ctx, d.x.Jobs, d.job, d.record, cause)
	} else {
		showRefusal(ctx, d.x.Jobs, d.job, d.record, cause)
	}
	return superseded, nil // by that task
}

// laterDelay returns when a range is tried again whose service says "later": after a quarter of the
// time for which it has said so, from 2 s to a minute, and not all ranges at once.
func laterDelay(r *record.Range, after time.Duration) time.Duration {
	const least, most = 2 * time.Second, time.Minute
	waited := time.Duration(0)
	if !r.LaterFrom.IsZero() {
		waited = time.Since(r.LaterFrom)
	}
	after = max(after, min(max(waited/4, least), most))
	return after + rand.N(min(after/2, time.Minute))
}

// fail ends the job. It reports whether the job is over: it goes on if somebody has resumed it
// since this delivery began.
func (d *delivery) fail(ctx context.Context, cause error) (over bool, err error) {
	if err := d.x.Fail(ctx, d.job, cause); err != nil {
		return false, err
	}
	job, err := d.x.Store.LoadJob(ctx, d.job.Ref())
	if err != nil {
		return false, err
	}
	d.job = job
	return job.State != record.Running, nil
}

// recordCulprit records the entity as a failure that the database has refused a page for. If there
// are many of them among what the job has processed, it is the function that is at fault.
func (d *delivery) recordCulprit(ctx context.Context, p planner.Plan, cause fault.CommitRefusal) (standing, error) {
	o := page.Failed(&record.Failure{At: p.At[0], Err: cause, Attempts: 1, Permanent: true})
	s, err := d.commitPage(ctx, p, o, nil)
	if err != nil || s != ours || d.job.Tolerant {
		return s, err
	}
	sum, _, err := d.x.Store.SampleTotals(ctx, d.job)
	if err != nil {
		return ours, err
	}
	if pace.TooMany(int(sum.Failures), int(sum.Failures+sum.Processed)) {
		summary := fmt.Sprintf("%d of %d entities failed so far, as the database refuses what the function writes",
			sum.Failures, sum.Failures+sum.Processed)
		_, err = d.fail(ctx, fault.Refusal{Summary: summary, Cause: cause, Final: true})
	}
	return ours, err
}

// yield has the only entity of a page give way to those after it, because others change it: it gets
// a range for itself, as one that fails does. There it is tried again later, and is a failure after
// its last attempt.
func (d *delivery) yield(ctx context.Context, p planner.Plan) (standing, error) {
	f := record.Failure{At: p.At[0], Err: errHot, Attempts: 1 + d.record.RefusalsIn(d.job)}
	if d.record.Alone && !f.Last(d.job.Backoff().Attempts) {
		return ours, fault.Refusal{Summary: "other clients change an entity all the time", Cause: errHot}
	}
	return d.commitPage(ctx, p, page.Failed(&f), nil)
}

// showRefusal says that a range was refused, and is tried again: in the log, and in the job's
// status, which says it until a sweep finds no such range. Only the first of many writes there.
func showRefusal(ctx context.Context, x *lifecycle.Jobs, job *record.Job, r *record.Range, cause error) {
	what := "pages are"
	if r.Alone {
		what = "an entity is"
		kind := fault.Kind(cause, r.Start.Names()...)
		if refused := (fault.Refusal{}); errors.As(cause, &refused) {
			kind = fault.Kind(refused.Cause, r.Start.Names()...)
		}
		x.Observer.Failing(ctx, job, r, 1, 0, "1 "+kind)
	} else {
		x.Log.LogAttrs(ctx, slog.LevelWarn, "a page is tried again", slog.String("job", job.ID),
			slog.String("mapper", job.Mapper), slog.String("range", r.ID),
			slog.String("cause", fault.Summary(cause)), slog.Int64("refused", r.Refusals),
			slog.Time("not_before", r.NotBefore))
	}
	if job.Trouble != "" {
		return
	}
	text := fmt.Sprintf("%s tried again, up to %d times: %s", what, job.Backoff().Attempts, fault.Text(cause))
	showTrouble(ctx, x, job, text)
}

// showLater says that a range waits for a service: once, when that begins.
func showLater(ctx context.Context, x *lifecycle.Jobs, job *record.Job, r *record.Range, cause error) {
	if time.Since(r.LaterFrom) > time.Minute {
		return
	}
	x.Log.LogAttrs(ctx, slog.LevelWarn, "a page waits for a service", slog.String("job", job.ID),
		slog.String("mapper", job.Mapper), slog.String("range", r.ID), slog.String("cause", fault.Summary(cause)),
		slog.Time("not_before", r.NotBefore))
	if job.Trouble == "" {
		showTrouble(ctx, x, job, "pages wait for a service, and go on when it accepts calls: "+fault.Text(cause))
	}
}

// showTrouble has the job's status say what is wrong, if it says nothing yet.
func showTrouble(ctx context.Context, x *lifecycle.Jobs, job *record.Job, text string) {
	_, err := x.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		if j.State != record.Running || j.Epoch != job.Epoch || j.Trouble != "" {
			return false, nil
		}
		j.Trouble = text
		return true, nil
	})
	if err != nil && !errors.Is(err, record.ErrNoSuchJob) {
		x.Log.LogAttrs(ctx, slog.LevelWarn, "a job's status can't say what is wrong", slog.String("job", job.ID),
			slog.Any("error", err))
	}
}

// refused handles a page that could not be committed: the database refuses it, or others change its
// entities all the time. It halves the page. A single entity becomes a failure, or is tried later.
func (d *delivery) refused(ctx context.Context, p planner.Plan, s standing, err error) (standing, error) {
	refusal, contended := new(fault.CommitRefusal), d.planner.Mode == function.Update &&
		(fault.Contended(err) || errors.Is(err, errHot))
	switch {
	case errors.As(err, refusal) && len(p.At) == 1:
		return d.recordCulprit(ctx, p, *refusal)
	case contended && len(p.At) == 1:
		return d.yield(ctx, p)
	case len(p.At) > 1 && (errors.As(err, refusal) || contended):
		return d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
			r.Narrow(len(p.At))
			return nil, nil
		})
	}
	return s, err
}
