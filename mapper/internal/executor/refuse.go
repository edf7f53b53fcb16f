package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// afterFailure decides what happens to a range after a failed delivery. After a temporary error,
// the queue delivers the task again. If the function failed or the database refused the page,
// another task tries it later, up to the number of attempts in the job's settings. After the last
// attempt, the job fails, and keeps its records.
func (d *delivery) afterFailure(ctx context.Context, cause error) (standing, error) {
	cause = fmt.Errorf("job %s: range %s: %w", d.job.ID, d.record.ID, cause)
	if !fault.IsFatal(cause) && !fault.Refused(cause) {
		return ours, cause
	}
	last, refusal := false, fault.Refusal{}
	_ = errors.As(cause, &refusal) // zero if there is none
	calls := d.announced.Load()
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		r.Calls += calls
		if refusal.Later {
			r.Later(laterDelay(r, refusal.After), time.Now())
		} else {
			last = r.Refuse(d.job, fault.After(cause), fault.IsFatal(cause), time.Now())
		}
		r.Alive(d.state.mark)
		r.Calm() // the delivery ends normally, so its crash mark is removed
		return nil, nil
	})
	switch {
	case err != nil:
		return ours, errors.Join(cause, err)
	case s == changed:
		return ours, cause // another delivery has cut the range meanwhile, so this attempt does not count as failed
	case s != ours:
		return s, nil
	}
	d.state.mark = "" // the change has removed the mark from the record
	d.announced.Add(-calls)
	if last {
		if over, err := d.fail(ctx, cause); err != nil || over {
			return ours, err
		}
	}
	if err := d.enqueueAgain(ctx); err != nil {
		return ours, err
	}
	if refusal.Later {
		d.showLater(ctx, cause, refusal.Own)
	} else {
		d.showRefusal(ctx, cause)
	}
	return superseded, nil // the range has a new task
}

// laterDelay returns how long a range waits before its next attempt if a service refuses calls for
// now ([mapper.RetryAfter]). It is a quarter of the time for which the service has refused them so
// far, between 2 seconds and a minute. It is at least after, the time that the service asks for. A
// random part keeps ranges from retrying at the same time.
func laterDelay(r *record.Range, after time.Duration) time.Duration {
	const least, most = 2 * time.Second, time.Minute
	waited := time.Duration(0)
	if !r.LaterFrom.IsZero() {
		waited = time.Since(r.LaterFrom)
	}
	after = max(after, min(max(waited/4, least), most))
	return after + rand.N(min(after/2, time.Minute))
}

// fail ends the job as failed. It returns true if the job has ended. It returns false if an
// operator has resumed the job since this delivery started: then the job continues.
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

// recordCulprit records the single entity of a page as a failure, because the database refuses the
// page's commit. If many entities of the job have failed, the function is at fault, and the job
// fails.
func (d *delivery) recordCulprit(ctx context.Context, p planner.Plan, cause fault.CommitRefusal) (standing, error) {
	o := page.Failed(&record.Failure{At: p.At[0], Err: cause, Attempts: 1, Permanent: true})
	s, err := d.commitPage(ctx, p, o, nil)
	if err != nil || s != ours || d.job.Tolerant {
		return s, err
	}
	sum, _, err := d.x.Store.SampleTotals(ctx, d.job) // zero after an error
	if pace.TooMany(int(sum.Failures), int(sum.Failures+sum.Processed)) {
		summary := fmt.Sprintf("%d of %d entities failed so far, as the database refuses what the function writes",
			sum.Failures, sum.Failures+sum.Processed)
		_, err = d.fail(ctx, fault.Refusal{Summary: summary, Cause: cause, Final: true})
	}
	return ours, err
}

// setApart gives the only entity of a page a range of its own, because other clients constantly
// change it. So it does not hold up the entities after it. The entity is retried later. After its
// last attempt, it becomes a failure. The argument cause is the error of the page's attempt.
func (d *delivery) setApart(ctx context.Context, p planner.Plan, cause error) (standing, error) {
	if !errors.Is(cause, errHot) {
		cause = errHot
	}
	f := record.Failure{At: p.At[0], Err: cause, Attempts: 1 + d.record.RefusalsIn(d.job)}
	if d.record.Alone && !f.Last(d.job.Backoff().Attempts) {
		return ours, fault.Refusal{Summary: "other clients change an entity all the time", Cause: cause}
	}
	return d.commitPage(ctx, p, page.Failed(&f), nil)
}

// showRefusal reports that a refused range is retried, in the log and in the job's status. If the
// status already shows an error, it does not change. The text stays in the status until a sweep
// finds no such range.
func (d *delivery) showRefusal(ctx context.Context, cause error) {
	what := "pages are"
	if d.record.Alone {
		what = "an entity is"
		kind := fault.Kind(cause, d.record.Start.Names()...)
		if refused := (fault.Refusal{}); errors.As(cause, &refused) {
			kind = fault.Kind(refused.Cause, d.record.Start.Names()...)
		}
		d.x.Observer.Failing(ctx, d.job, d.record, 1, 0, "1 "+kind)
	} else {
		d.x.Log.LogAttrs(ctx, slog.LevelWarn, "a page is tried again", slog.String("job", d.job.ID),
			slog.String("mapper", d.job.Mapper), slog.String("range", d.record.ID),
			slog.String("cause", fault.Summary(cause)), slog.Int64("refused", d.record.Refusals),
			slog.Time("not_before", d.record.NotBefore))
	}
	if d.job.Trouble != "" {
		return
	}
	text := fmt.Sprintf("%s tried again, up to %d times: %s", what, d.job.Backoff().Attempts,
		fault.Brief(fault.Text(cause)))
	d.showTrouble(ctx, text)
}

// showLater reports that a range waits, and does so only in the first minute of the wait. If own is
// false, the range waits for a service, and the job's status shows this, too. If own is true, it
// waits for the job's own rate of calls. Such a wait is normal, so only the log shows it.
func (d *delivery) showLater(ctx context.Context, cause error, own bool) {
	if time.Since(d.record.LaterFrom) > time.Minute {
		return
	}
	level, text := slog.LevelWarn, "a page waits for a service"
	if own {
		level, text = slog.LevelInfo, "a page waits for its calls"
	}
	d.x.Log.LogAttrs(ctx, level, text, slog.String("job", d.job.ID),
		slog.String("mapper", d.job.Mapper), slog.String("range", d.record.ID),
		slog.String("cause", fault.Summary(cause)), slog.Time("not_before", d.record.NotBefore))
	if d.job.Trouble == "" && !own {
		d.showTrouble(ctx, fault.Brief(fault.Text(cause)))
	}
}

// showTrouble shows a text in the job's status, unless the status already shows an error.
func (d *delivery) showTrouble(ctx context.Context, text string) {
	_, err := d.x.Store.UpdateJob(ctx, d.job.Ref(), func(j *record.Job) (bool, error) {
		if j.State != record.Running || j.Epoch != d.job.Epoch || j.Trouble != "" {
			return false, nil
		}
		j.Trouble = text
		return true, nil
	})
	if err != nil && !errors.Is(err, record.ErrNoSuchJob) {
		d.x.Log.LogAttrs(ctx, slog.LevelWarn, "a job's status can't say what is wrong", slog.String("job", d.job.ID),
			slog.Any("error", err))
	}
}

// refused handles a page that can't be committed, because the database refuses it, other clients
// constantly change its entities, or its first batch hangs. s and err are the result of the page's
// attempt. refused halves the page. If the page has a single entity, the entity becomes a failure,
// or is retried later. After any other result, refused returns s and err.
func (d *delivery) refused(ctx context.Context, p planner.Plan, s standing, err error) (standing, error) {
	refusal, contended := new(fault.CommitRefusal), d.planner.Mode == function.Update &&
		(fault.Contended(err) || errors.Is(err, errHot))
	batch, n := new(page.BatchError), len(p.At)
	if errors.As(err, batch) {
		n = batch.Entities
	}
	switch {
	case errors.As(err, refusal) && len(p.At) == 1:
		return d.recordCulprit(ctx, p, *refusal)
	case contended && len(p.At) == 1:
		return d.setApart(ctx, p, err)
	case n > 1 && (errors.As(err, refusal) || contended || errors.As(err, batch)):
		return d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
			r.Halve(n)
			return nil, nil
		})
	}
	return s, err
}
