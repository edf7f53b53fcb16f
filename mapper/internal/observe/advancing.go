package observe

import (
	"context"
	"log/slog"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Advancing returns a hook that also advances schedules when a job does not run any more, whichever
// it is: it may have had a slot that a tick waits for. If that fails, a revival does so.
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
