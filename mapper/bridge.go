package mapper

import (
	"errors"

	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

func init() {
	bridge.Prepare = prepare
	bridge.Seed = func(engine any, seed uint64) { engine.(*Engine).seed(seed) }
}

// prepare returns the function of a definition with parameters, as a job would.
func prepare(definition, params any) (function.Func, error) {
	def := definition.(AnyMapper).definition()
	if def.Prepare == nil {
		return nil, errors.New("the mapper was not made by Update or Visit")
	}
	if def.Err != nil {
		return nil, def.Err
	}
	encoded, err := function.EncodeParams(params)
	if err != nil {
		return nil, err
	}
	return def.Prepare(encoded, false)
}
