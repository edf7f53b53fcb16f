package mapper

import "github.com/scattermap/scattermap/mapper/internal/split"

// A Splitting says how a job's ranges are cut. Use the zero value, which is adaptive. The other
// values imitate other mappers, for comparisons.
type Splitting struct {
	// First is the number of ranges that the kind is cut into at the start, in [1, 5000]. One
	// commit records all of them.
	First int `json:"first,omitempty"`

	// FanOut is the number of ranges that a task cuts the rest after its page into, in [1, 100]. 1
	// is none: each of the first ranges is processed page after page, as static sharding does. Set
	// First and FanOut together.
	FanOut int `json:"fan_out,omitempty"`

	// Bisect cuts the rest into FanOut equal parts of its key space, by arithmetic, and not where
	// entities are. In a job with ShardBy these are equal parts of the values. First must be 1, and
	// FanOut at least 2.
	Bisect bool `json:"bisect,omitempty"`
}

// strategy returns what splitting makes of it.
func (sp Splitting) strategy() split.Strategy { return split.Strategy(sp) }
