package executor

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A standing is the state in which a delivery finds its range when it reads the range's record.
type standing int

const (
	// the record is what the delivery expects; after a commit: the commit took effect
	ours standing = iota
	// the range is pending, but its record has changed, so the delivery must plan its page again
	changed
	done       // the range is done: by another delivery, or by this one in a commit whose answer was lost
	superseded // the range has another task now, or its record was deleted
	stopped    // the range's job no longer runs
)

// check returns the standing of the range, given its record r, which was just read. It is ours if
// the range is pending, has the generation that the task names, and was not cut since the delivery
// last read it.
func (d *delivery) check(r *record.Range) standing {
	known := d.record
	switch {
	case r.State == record.Done:
		return done
	case r.State != record.Pending || r.Generation != d.generation:
		return superseded
	case r.Cut != known.Cut || r.Children != known.Children:
		return changed
	}
	return ours
}

// A finding is what a delivery has found when it has read its range's record again.
type finding struct {
	standing standing
	record   *record.Range
}

// A fencedError ends a transaction in which the standing of the range is not ours. It has what the
// transaction has found.
type fencedError struct{ finding }

func (fencedError) Error() string { return "the range is not as this delivery knows it" }

// takeOver replaces the delivery's record of the range by the record that it has found in the
// database. If another delivery has done the range, it sets beaten.
func (d *delivery) takeOver(now finding) {
	if now.standing == done || now.standing == changed {
		d.record = now.record
		d.state.beaten = now.standing == done && !slices.ContainsFunc(d.state.finished, d.record.Done.Equal)
	}
}
