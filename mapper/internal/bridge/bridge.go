// Package bridge is what mapper/mappertest, and the tests of whole jobs, use of package mapper's
// inside. Package mapper sets its functions.
package bridge

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

var (
	// Prepare returns the function of a mapper.AnyMapper over one entity, with parameters of its
	// type.
	Prepare func(definition, params any) (function.Func, error)

	// Seed has a mapper.Engine draw its random numbers from a seed, so that a test can be repeated.
	Seed func(engine any, seed uint64)

	// Portion has a mapper.Engine keep a draft of its jobs' totals every so many records, and leave
	// the rest to a new task after a time.
	Portion func(engine any, records int, longest time.Duration)

	// UndoMost limits the bytes of images that one commit of an undo restores. Larger pages are
	// restored in batches.
	UndoMost func(engine any, bytes int64)

	// Tick has a mapper.Engine take the ticks of schedules. It does not start those that wait.
	Tick func(engine any, schedules ...string)
)
