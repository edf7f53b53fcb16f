package mapper

import (
	"context"
	"fmt"
)

// Revive makes sure that every job that runs has a sweep. Only a purge of the queue
// loses the chain of sweeps; a schedule that calls this now and then, or posts to
// the path "revive" of the handler, finds such jobs. It costs a read and a task for
// each job that runs.
func (e *Engine) Revive(ctx context.Context) error {
	if e == nil {
		return fmt.Errorf("mapper: revive: %w: the engine is nil", ErrArguments)
	}
	if err := e.jobs.Revive(ctx); err != nil {
		return fmt.Errorf("mapper: revive: %w", err)
	}
	return nil
}
