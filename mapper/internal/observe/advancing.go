package observe

import (
	"context"
	"log/slog"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Advancing returns a hook that is called for changes of jobs' states. It calls the given hook
// first. If the job has stopped running, it then advances the engine's schedules, because a run may
// have waited for this. If this fails, the next call of ReviveJobs advances them.
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
