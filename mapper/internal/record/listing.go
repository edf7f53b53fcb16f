package record

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Listing selects jobs by queue, state and mapper. An empty field selects all.
//
// The indexed property "listed" of a job's record has an entry for each of the eight combinations
// of these fields, with some of them empty. An entry is a hash of the combination, followed by the
// job's place (see [Job.Place]). So the jobs of each listing are consecutive entries of the index,
// in the order of their starts.
type Listing struct {
	Queue  Owner
	State  JobState
	Mapper string

	From, Before time.Time // selects jobs that started in the interval [From, Before); zero: no limit
}

// prefix returns the text with which all index entries of this listing start: a hash and a dot.
func (l Listing) prefix() string {
	h := sha256.New()
	for _, part := range []string{string(l.Queue), string(l.State), l.Mapper} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]) + "."
}

// Bounds returns the bounds of the index entries for the jobs of the listing. If before is the
// place of a job, only jobs that started earlier are inside the bounds.
func (l Listing) Bounds(before string) (from, to string) {
	to = cmp.Or(before, "~") // "~" is greater than all places
	if !l.Before.IsZero() {
		to = min(to, instant(l.Before))
	}
	if !l.From.IsZero() {
		from = instant(l.From)
	}
	return l.prefix() + from, l.prefix() + to
}

// instant returns a time as a text that sorts like the time, in microseconds. The place of a job
// starts with the text of its start time.
func instant(t time.Time) string { return fmt.Sprintf("%016x", max(0, t.UnixMicro())) }

// Place returns the job's place in the order of start times, as a text. It is unique, because it
// contains the ID.
func (j *Job) Place() string { return instant(j.Created) + "." + j.ID }

var place = regexp.MustCompile(`^[0-9a-f]{16}\.[A-Za-z0-9_-]{1,100}$`)

// ValidPlace reports whether a text can be a job's place, see [Job.Place].
func ValidPlace(s string) bool { return place.MatchString(s) }

// listed returns the values of the indexed property "listed" for a job: one for each listing that
// contains the job.
func listed(j *Job) (all []string) {
	for _, queue := range slices.Compact([]Owner{"", j.Queue}) {
		for _, state := range []JobState{"", j.State} {
			for _, mapper := range []string{"", j.Mapper} {
				all = append(all, Listing{Queue: queue, State: state, Mapper: mapper}.prefix()+j.Place())
			}
		}
	}
	return all
}

// CheckState returns an error if a text is not the name of a job's state. The empty text is
// allowed, because it selects all states.
func CheckState(state JobState) error {
	states := []JobState{Running, Paused, Succeeded, SucceededWithFailures, Failed, Aborted}
	if state == "" || slices.Contains(states, state) {
		return nil
	}
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return fmt.Errorf("there is no state %q: have %s", state, strings.Join(names, ", "))
}
