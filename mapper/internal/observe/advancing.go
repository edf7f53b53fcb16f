package observe

import (
	"context"
	"log/slog"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Advancing returns a hook to call after each change of a job's state. It calls the given hook
// first. If the job no longer runs, it then calls advance, which starts waiting runs of the
// engine's schedules: a run may have waited for the job's end. If advance fails, the next call of
// ReviveJobs starts these runs.
func Advancing(
	hook func(context.Context, Change), advance func(context.Context) error, log *slog.Logger,
) func(context.Context, Change) {
	return func(ctx context.Context, c Change) {
		if hook != nil {
			hook(ctx, c)
		}
		if c.Job.State == record.Running {
			return
		}
		if err := advance(ctx); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "a schedule did not advance; the next call of ReviveJobs advances it",
				slog.Any("error", err))
		}
	}
}
