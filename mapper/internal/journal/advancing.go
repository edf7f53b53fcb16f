package journal

import (
	"context"
	"log/slog"
)

// Advancing returns a hook that also advances schedules when a job has ended. If that fails, a revival does so.
func Advancing(hook func(context.Context, Change), advance func(context.Context) error, log *slog.Logger) func(context.Context, Change) {
	return func(ctx context.Context, c Change) {
		if hook != nil {
			hook(ctx, c)
		}
		if !c.Job.Over() {
			return
		}
		if err := advance(ctx); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "a schedule was not advanced; the next revival does so", slog.Any("error", err))
		}
	}
}
