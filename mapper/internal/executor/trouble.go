package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

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
		x.Journal.Failing(ctx, job, r, 1, 0, "1 "+kind)
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

// showBuild says that this build does not have the mapper of a job. Only the first of many
// deliveries writes to its record.
func showBuild(ctx context.Context, x *lifecycle.Jobs, job *record.Job) error {
	missing := fmt.Errorf("job %s: %w %q", job.ID, function.ErrUnknownMapper, job.Mapper)
	return errors.Join(missing, x.ShowBuild(ctx, job, true))
}
