package bench

import "github.com/scattermap/scattermap/mapper"

// A strategy is how the engine cuts a job: settings of the one engine.
type strategy struct {
	name      string
	splitting func(workers int) mapper.Splitting
}

var strategies = []strategy{
	{"adaptive", fixed(mapper.Splitting{})},
	// One task after the other, each with as many pages as its time allows.
	{"chain", fixed(mapper.Splitting{First: 1, FanOut: 1})},
	// Shards that are cut at the start, at a sample of 512 keys, each a chain: what the
	// App Engine MapReduce library and LUCI's mapper do.
	{"static-8", fixed(mapper.Splitting{First: 8, FanOut: 1})},
	{"static-32", fixed(mapper.Splitting{First: 32, FanOut: 1})},
	{"static-256", fixed(mapper.Splitting{First: 256, FanOut: 1})},
	{"static-W", func(workers int) mapper.Splitting { return mapper.Splitting{First: workers, FanOut: 1} }},
	// The rest of each range is halved at the middle of its key space.
	{"bisect", fixed(mapper.Splitting{First: 1, FanOut: 2, Bisect: true})},
	// The textbook form: a page, and then a ten-way cut of the rest.
	{"process-first", fixed(mapper.Splitting{First: 1, FanOut: 10})},
}

func fixed(s mapper.Splitting) func(int) mapper.Splitting {
	return func(int) mapper.Splitting { return s }
}
