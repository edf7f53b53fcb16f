// Package bridge is what mapper/mappertest, and the tests of package mapper, use of its inside.
// Package mapper sets its functions.
package bridge

import "github.com/scattermap/scattermap/mapper/internal/function"

var (
	// Prepare returns the function of a mapper.AnyMapper over one entity, with parameters of its
	// type.
	Prepare func(definition, params any) (function.Func, error)

	// Seed has a mapper.Engine draw its random numbers from a seed, so that a test can be repeated.
	Seed func(engine any, seed uint64)
)
