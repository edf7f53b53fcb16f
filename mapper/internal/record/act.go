package record

import (
	"encoding/json"
	"fmt"
	"time"
)

// An Act is an entry of a job's history: for example, an operator or a limit paused the job, or the
// job ended.
type Act struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	By   string    `json:"by,omitempty"`
	Why  string    `json:"why,omitempty"`
	To   JobState  `json:"to"` // the job's state after this entry
}

// Texts of entries after which all open ranges of a running job get new tasks, also if the job ran
// before.
const (
	Again = "resumed"
	Moved = "moved"
)

// Limits of a job's history. It is stored in the job's record, which may have at most 1 MiB.
const (
	maxActs     = 100
	maxActBytes = 64 << 10
)

// A History has the last 100 entries of a job's history, the oldest first, as JSON of at most 64
// KiB.
type History []byte

// NoteEnd adds an entry to the job's history, which says that the job has ended. If the job failed,
// the entry has the error.
func (j *Job) NoteEnd() {
	j.History = j.History.With(Act{At: j.Ended, What: string(j.State), Why: j.Error, To: j.State})
}

// Acts decodes the history. The oldest entry comes first.
func (h History) Acts() (acts []Act, err error) {
	if len(h) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(h, &acts); err != nil {
		return nil, fmt.Errorf("its history can't be read: %w", err)
	}
	return acts, nil
}

// With returns the history with the entry a added at its end. If the history can't be decoded, the
// result has only a, because a damaged history must not prevent an operation.
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
		if len(encoded) <= maxActBytes {
			return encoded
		}
		acts = acts[1:]
	}
}
