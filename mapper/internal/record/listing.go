package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
)

// A Listing is the jobs of a queue, in a state, of a mapper; what is empty does not matter. Each
// job is listed under the eight combinations of what it has and of nothing, in one property that
// has an index of its own: a value is a hash of the combination, and the job's place. So each
// listing is a stretch of one index, in the order of places.
type Listing struct {
	Queue  Owner
	State  JobState
	Mapper string
}

// prefix begins the values of the listing, and of no other one.
func (l Listing) prefix() string {
	h := sha256.New()
	for _, part := range []string{string(l.Queue), string(l.State), l.Mapper} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]) + "."
}

// Bounds returns between which two values the jobs of the listing are that were started before a
// place; an empty one is behind the last.
func (l Listing) Bounds(before string) (from, to string) {
	if before == "" {
		before = "~" // above all places
	}
	return l.prefix(), l.prefix() + before
}

// Place returns the job's place among all jobs, in the order in which they were started. No other
// job has it.
func Place(j *Job) string { return fmt.Sprintf("%016x.%s", j.Created.UnixMicro(), j.ID) }

var place = regexp.MustCompile(`^[0-9a-f]{16}\.[A-Za-z0-9_-]{1,100}$`)

// ValidPlace reports whether a text can be the place of a job.
func ValidPlace(s string) bool { return place.MatchString(s) }

// listed returns what the job is listed under.
func listed(j *Job) (all []string) {
	for i := range 8 {
		l := Listing{Queue: j.Queue, State: j.State, Mapper: j.Mapper}
		if i&1 == 0 {
			l.Queue = ""
		}
		if i&2 == 0 {
			l.State = ""
		}
		if i&4 == 0 {
			l.Mapper = ""
		}
		if i&1 == 0 || j.Queue != "" {
			all = append(all, l.prefix()+Place(j))
		}
	}
	return all
}

// CheckState returns an error if a job can't be in a state. An empty one stands for all.
func CheckState(state JobState) error {
	states := []JobState{Running, Paused, Succeeded, SucceededWithFailures, Failed, Aborted}
	if state == "" || slices.Contains(states, state) {
		return nil
	}
	return fmt.Errorf("there is no state %q: a job is one of %q", state, states)
}
