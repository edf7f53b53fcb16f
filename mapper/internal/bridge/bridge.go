// Package bridge gives mapper/split, mapper/picture, mapper/mappertest, and tests of whole jobs,
// access to unexported parts of package mapper. Package mapper assigns the functions, because
// bridge can't import mapper.
package bridge

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

var (
	// Prepare takes a mapper.AnyMapper and its parameters, and returns the mapper's function for
	// single entities. The parameters must have the mapper's type.
	Prepare func(definition, params any) (function.Func, error)

	// PrepareBatch takes a mapper.AnyMapper and its parameters. It returns the mapper's function
	// for batches, and the size of a batch.
	PrepareBatch func(definition, params any) (function.BatchFunc, int, error)

	// InnerQuery converts a mapper.Query for package query.
	InnerQuery func(q any) query.Query

	// PublicQuery converts a query of package query into a mapper.Query. It does the reverse of
	// InnerQuery.
	PublicQuery func(q query.Query) any

	// QueueOf returns what the queue has said about a job's tasks when a *mapper.Status was read.
	QueueOf func(status any) estimate.Queue

	// Seed makes a mapper.Engine draw its random numbers from a seed, so that a test run can be
	// repeated.
	Seed func(engine any, seed uint64)

	// WithEngine returns a context from which mapper.EngineFromContext returns the given
	// mapper.Engine.
	WithEngine func(ctx context.Context, engine any) context.Context

	// Portion limits the work of one task that adds up a job's records at the end of the job. The
	// task stores its sums after every batch of the given number of records. After the duration
	// longest it stops, and another task continues.
	Portion func(engine any, records int, longest time.Duration)

	// UndoMost limits how many bytes of entities one commit of an undo restores. For a page with
	// more bytes, the undo makes several commits.
	UndoMost func(engine any, bytes int64)

	// Tick makes a mapper.Engine accept the ticks of schedules with these names. A tick is a task
	// that starts one run of a schedule. Tick does not make the engine look for due ticks.
	Tick func(engine any, schedules ...string)
)
