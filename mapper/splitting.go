package mapper

import "github.com/scattermap/scattermap/mapper/internal/split"

// A Splitting says how a job's ranges are cut. Use the zero value, which is adaptive: a task gives
// work to idle workers. The other values imitate other mappers, for comparisons.
type Splitting struct {
	// First is how many ranges the query is cut into at the start, in [1, 5000]. One commit records
	// all of them.
	First int `json:"first,omitempty"`

	// FanOut is the number of ranges into which a task cuts the rest of its range after a page, in
	// [1, 100]. With 1 the rest is not cut: each of the first ranges is processed page after page,
	// as with static sharding. Set First and FanOut together.
	FanOut int `json:"fan_out,omitempty"`

	// Bisect makes a task cut the rest of its range into FanOut equal parts of the key space, no
	// matter where entities are. In a job with ShardBy they are equal intervals of values. First
	// must be 1, and FanOut at least 2.
	Bisect bool `json:"bisect,omitempty"`
}

// strategy converts the splitting for package split.
func (sp Splitting) strategy() split.Strategy { return split.Strategy(sp) }
