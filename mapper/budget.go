package mapper

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/executor"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// SetBudget replaces the job's [Budget]. It holds for pages that start a second or more after the
// call. The job's cost so far does not count for the new budget. A paused job stays paused until
// [Job.Resume]. If a budget has paused the job, Resume lets it spend the full amount of the new
// budget. To remove the budget, pass Budget{Dollars: [Unlimited]}.
//
// The error is [ErrInvalidArgument] for the zero Budget, for a budget that is too small for a page,
// and for an undo. It is [ErrWrongState] if the job has succeeded or was aborted.
func (j *Job) SetBudget(ctx context.Context, budget Budget) error {
	if budget == (Budget{}) {
		return fmt.Errorf("mapper: set the budget of %s: %w: it is empty: to remove the budget, set Dollars to %d",
			j.ID, ErrInvalidArgument, Unlimited)
	}
	if budget.Dollars == Unlimited {
		budget.Dollars = 0 // as in records
	}
	if budget.Operations == Unlimited {
		budget.Operations = 0
	}
	on, text := changing(ctx, j), "its budget is removed"
	if budget != (Budget{}) {
		text = "its budget is set to " + record.Budget(budget).String()
	}
	_, err := asked(on).Change(ctx, j.ref(), text, func(r *record.Job) (changed bool, err error) {
		if err := r.Queue.Is(on.queue.Name()); err != nil {
			return false, err
		}
		if record.IsUndo(r.Mapper) {
			return false, fmt.Errorf("%w: an undo has no budget", ErrInvalidArgument)
		}
		if r.Over() && r.State != record.Failed { // a failed job may be resumed, so its budget matters
			return false, fmt.Errorf("%w: it is %q", ErrWrongState, r.State)
		}
		if budget == (Budget{}) {
			r.SetBudget(nil)
			return true, nil
		}
		mode := function.Update // the mode if the engine does not have the job's mapper
		if def := j.engine.mappers[r.Mapper]; def != nil {
			mode = def.Mode
		}
		if enough, least := executor.Suffices(record.Budget(budget), int(r.PageSize), int(r.AtOnce()), mode.Writes(),
			j.engine.prices); !enough {
			return false, fmt.Errorf("%w: it is %v, and has to be at least %s: the next pages may cost that",
				ErrInvalidArgument, record.Budget(budget), least)
		}
		encoded, err := json.Marshal(budget)
		r.SetBudget(encoded)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("mapper: set the budget of %s: %w", j.ID, err)
	}
	return nil
}
