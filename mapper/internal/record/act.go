package record

import (
	"encoding/json"
	"fmt"
	"time"
)

// An Act is what somebody has done to a job, or one of its limits.
type Act struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	By   string    `json:"by,omitempty"`
	Why  string    `json:"why,omitempty"`
	To   JobState  `json:"to"` // since
}

// Bounds of a job's history, which has its place in the job's record of at most 1 MiB.
const (
	maxActs     = 100
	maxActBytes = 64 << 10
)

// A History is what was done to a job, as JSON: the last hundred acts, as far as they fit 64 KiB.
type History []byte

// Acts returns the acts, the oldest one first.
func (h History) Acts() (acts []Act, err error) {
	if len(h) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(h, &acts); err != nil {
		return nil, fmt.Errorf("its history can't be read: %w", err)
	}
	return acts, nil
}

// With returns the history with another act. One that can't be read begins anew: an act is not
// refused for it.
func (h History) With(a Act) History {
	acts, _ := h.Acts()
	a.At = a.At.UTC().Truncate(time.Microsecond)
	acts = append(acts, a)
	acts = acts[max(0, len(acts)-maxActs):]
	for {
		encoded, err := json.Marshal(acts)
		if err != nil {
			panic("record: a struct of strings and times does not encode: " + err.Error())
		}
		if len(encoded) <= maxActBytes || len(acts) == 1 {
			return encoded
		}
		acts = acts[1:]
	}
}
