package mapper

import "github.com/scattermap/scattermap/mapper/internal/split"

// A Splitting says how a job's ranges are cut. The zero value is adaptive, and what
// jobs should have. The others are ways of other mappers, to compare with.
type Splitting struct {
	// First is into how many ranges the kind is cut at the start, in [1, 5000]. They are
	// recorded in one commit.
	First int `json:"first,omitempty"`

	// FanOut is into how many ranges a task cuts what is left behind its page, in [1, 100].
	// 1 is none: each of the first ranges is processed page after page, as static sharding
	// does. First and FanOut are set together.
	FanOut int `json:"fan_out,omitempty"`

	// Bisect has what is left cut into FanOut equal parts of its key space, by arithmetic, and
	// not where entities are: at the middle, if FanOut is 2. Of a job with ShardBy these are
	// equal parts of the values. First has to be 1 then, and FanOut 2 or more.
	Bisect bool `json:"bisect,omitempty"`
}

// strategy returns what splitting makes of it.
func (sp Splitting) strategy() split.Strategy { return split.Strategy(sp) }
