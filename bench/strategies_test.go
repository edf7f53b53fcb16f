package bench

import "github.com/scattermap/scattermap/mapper"

// A strategy is a way to split a job into ranges. The engine is the same for all; only its settings
// differ.
type strategy struct {
	name      string
	splitting func(workers int) mapper.Splitting
}

var strategies = []strategy{
	{"adaptive", fixed(mapper.Splitting{})},
	// One task after the other. Each task processes as many pages as fit into its time.
	{"chain", fixed(mapper.Splitting{First: 1, FanOut: 1})},
	// The job is cut into shards only at its start, by a sample of 512 keys. Each shard is
	// processed by a chain of tasks, as in the App Engine MapReduce library and in LUCI's mapper.
	{"static-8", fixed(mapper.Splitting{First: 8, FanOut: 1})},
	{"static-32", fixed(mapper.Splitting{First: 32, FanOut: 1})},
	{"static-256", fixed(mapper.Splitting{First: 256, FanOut: 1})},
	{"static-W", func(workers int) mapper.Splitting { return mapper.Splitting{First: workers, FanOut: 1} }},
	// After each page, the rest of the range is cut in the middle between its first and last
	// possible key.
	{"bisect", fixed(mapper.Splitting{First: 1, FanOut: 2, Bisect: true})},
	// As in textbooks: process one page, and then cut the rest into ten ranges.
	{"process-first", fixed(mapper.Splitting{First: 1, FanOut: 10})},
}

func fixed(s mapper.Splitting) func(int) mapper.Splitting {
	return func(int) mapper.Splitting { return s }
}
