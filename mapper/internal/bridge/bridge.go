// Package bridge gives mapper/mappertest, and the tests of whole jobs, access to parts of package
// mapper that are not exported. Package mapper sets its functions.
package bridge

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

var (
	// Prepare returns the function of a mapper.AnyMapper for single entities, with params of its
	// type.
	Prepare func(definition, params any) (function.Func, error)

	// PrepareBatch returns the function of a mapper.AnyMapper for batches, and their size.
	PrepareBatch func(definition, params any) (function.BatchFunc, int, error)

	// Seed makes a mapper.Engine draw its random numbers from a seed, so that a test can be
	// repeated.
	Seed func(engine any, seed uint64)

	// WithEngine returns a context from which mapper.EngineFromContext gets a mapper.Engine.
	WithEngine func(ctx context.Context, engine any) context.Context

	// Portion makes a mapper.Engine add up a job's totals in portions. It keeps a draft after each
	// number of records, and leaves the rest to a new task after longest.
	Portion func(engine any, records int, longest time.Duration)

	// UndoMost limits the bytes of stored images that one commit of an undo restores. Larger pages
	// are restored in batches.
	UndoMost func(engine any, bytes int64)

	// Tick makes a mapper.Engine run a tick of each of the schedules. It does not start ticks that
	// wait.
	Tick func(engine any, schedules ...string)
)
