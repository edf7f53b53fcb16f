package bench

import "github.com/scattermap/scattermap/mapper"

// A strategy is a way to cut a job. It consists of settings of the one engine.
type strategy struct {
	name      string
	splitting func(workers int) mapper.Splitting
}

var strategies = []strategy{
	{"adaptive", fixed(mapper.Splitting{})},
	// One task after the other, each with as many pages as fit into its time.
	{"chain", fixed(mapper.Splitting{First: 1, FanOut: 1})},
	// Shards cut at the start, at a sample of 512 keys. Each is a chain. The App Engine MapReduce
	// library and LUCI's mapper do this.
	{"static-8", fixed(mapper.Splitting{First: 8, FanOut: 1})},
	{"static-32", fixed(mapper.Splitting{First: 32, FanOut: 1})},
	{"static-256", fixed(mapper.Splitting{First: 256, FanOut: 1})},
	{"static-W", func(workers int) mapper.Splitting { return mapper.Splitting{First: workers, FanOut: 1} }},
	// The rest of each range is halved at the middle of its key space.
	{"bisect", fixed(mapper.Splitting{First: 1, FanOut: 2, Bisect: true})},
	// The textbook form: one page, and then a cut of the rest into ten.
	{"process-first", fixed(mapper.Splitting{First: 1, FanOut: 10})},
}

func fixed(s mapper.Splitting) func(int) mapper.Splitting {
	return func(int) mapper.Splitting { return s }
}
