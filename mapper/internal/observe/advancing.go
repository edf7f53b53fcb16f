package observe

import (
	"context"
	"log/slog"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Advancing returns a hook that calls hook, and then advances the engine's schedules if the job has
// stopped running. A tick of a schedule may have waited for the job's end. If advancing fails, the
// next revival of jobs does it.
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
