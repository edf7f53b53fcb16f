package executor

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A standing says how a range stands to a delivery of its task.
type standing int

const (
	// it is as the delivery knows it; from a commit without an error: the commit took effect
	ours       standing = iota
	changed             // it is pending, but its record has changed: the delivery plans it again
	done                // another delivery has done it, or this one has and the answer was lost
	superseded          // it has another task, or its record is deleted
	stopped             // its job no longer runs
)

// check returns how a record of the range that was just read stands to the delivery. The range is
// the delivery's own if it is pending, at the generation that the task names, and not cut since the
// delivery read it.
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

// A fencedError ends a transaction on a range that is not the delivery's own, or that has changed
// since the delivery read it.
type fencedError struct {
	standing standing
	found    *record.Range
}

func (fencedError) Error() string { return "the range is not as this delivery knows it" }

// takeOver takes over the record of a range that is done or was changed by another delivery. It
// sets beaten if this delivery has not done the range.
func (d *delivery) takeOver(stands fencedError) {
	if stands.standing == done || stands.standing == changed {
		d.record = stands.found
		d.turn.beaten = stands.standing == done && !slices.ContainsFunc(d.turn.finished, d.record.Done.Equal)
	}
}
