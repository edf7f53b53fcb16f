// Package bridge gives mapper/mappertest, and the tests of whole jobs, access to parts of package
// mapper that are not exported. Package mapper sets its functions.
package bridge

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

var (
	// Prepare returns the function of a mapper.AnyMapper for single entities. The parameters must
	// have the mapper's type.
	Prepare func(definition, params any) (function.Func, error)

	// PrepareBatch returns the function of a mapper.AnyMapper for batches, and the size of a batch.
	PrepareBatch func(definition, params any) (function.BatchFunc, int, error)

	// Seed makes a mapper.Engine draw its random numbers from a seed, so that a test can be
	// repeated.
	Seed func(engine any, seed uint64)

	// WithEngine returns a context in which mapper.EngineFromContext finds a mapper.Engine.
	WithEngine func(ctx context.Context, engine any) context.Context

	// Portion makes a mapper.Engine add up a job's records in portions. It stores a draft after
	// each number of records, and leaves the rest to a new task after the time longest.
	Portion func(engine any, records int, longest time.Duration)

	// UndoMost limits the size of the entities that one commit of an undo restores, in bytes.
	// Larger pages are restored in batches.
	UndoMost func(engine any, bytes int64)

	// Tick adds names to the schedules of a mapper.Engine, so that it accepts their ticks. It does
	// not make the engine start waiting ticks.
	Tick func(engine any, schedules ...string)
)
