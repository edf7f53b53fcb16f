package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

func init() {
	bridge.Prepare, bridge.PrepareBatch = prepare, prepareBatch
	bridge.InnerQuery = func(q any) query.Query { return q.(Query).inner() }
	bridge.PublicQuery = func(q query.Query) any { return publicQuery(q) }
	bridge.QueueOf = func(status any) estimate.Queue { return status.(*Status).queue }
	bridge.Seed = func(engine any, seed uint64) { engine.(*Engine).seed(seed) }
	bridge.WithEngine = func(ctx context.Context, engine any) context.Context {
		return context.WithValue(ctx, engineKey{}, engine.(*Engine))
	}
	bridge.Portion = func(engine any, records int, longest time.Duration) {
		engine.(*Engine).jobs.Portion = lifecycle.Portion{Records: records, Time: longest}
	}
	bridge.UndoMost = func(engine any, bytes int64) { engine.(*Engine).undoMost.Store(bytes) }
	bridge.Tick = func(engine any, schedules ...string) {
		e := engine.(*Engine)
		e.schedules = append(e.schedules, schedules...)
	}
}

// prepare returns the function that a job calls for one entity, with the job's parameters filled
// in. The argument definition is an AnyMapper.
func prepare(definition, params any) (function.Func, error) {
	def, encoded, err := defined(definition, params)
	if err != nil {
		return nil, err
	}
	return def.Prepare(encoded, false)
}

// prepareBatch returns the function that a job calls for a batch, and the size of a batch. The
// argument definition is an AnyMapper made by [UpdateBatches] or [VisitBatches].
func prepareBatch(definition, params any) (function.BatchFunc, int, error) {
	def, encoded, err := defined(definition, params)
	if err != nil {
		return nil, 0, err
	}
	if def.PrepareBatch == nil {
		return nil, 0, errors.New("the mapper was not made by UpdateBatches or VisitBatches")
	}
	call, err := def.PrepareBatch(encoded, false)
	return call, def.BatchSize, err
}

// defined returns the definition in an AnyMapper, and the parameters of a job, params, as JSON. It
// returns an error if either is invalid.
func defined(definition, params any) (*function.Definition, json.RawMessage, error) {
	def := definition.(AnyMapper).definition()
	if def.Prepare == nil {
		return nil, nil, errors.New("the mapper was not made by a function of this package, such as Update")
	}
	if def.Err != nil {
		return nil, nil, def.Err
	}
	encoded, err := function.EncodeParams(params)
	if err == nil {
		encoded, err = def.Canonical(encoded) // as a start does
	}
	return def, encoded, err
}
