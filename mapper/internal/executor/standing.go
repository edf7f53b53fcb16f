package executor

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A standing says in which state a delivery has found its range, when it reads the range's record.
type standing int

const (
	// the record is as the delivery knows it; after a commit: the commit took effect
	ours       standing = iota
	changed             // the range is pending, but its record has changed: the delivery plans it again
	done                // the range is done, by another delivery, or by this one in a commit whose answer was lost
	superseded          // the range has another task by now, or its record is deleted
	stopped             // the range's job no longer runs
)

// check returns the standing of the range according to the record r, which was just read. It is
// ours if the range is pending, has the generation that the task names, and was not cut since the
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

// A fencedError is the error with which a transaction ends if the standing of the range is not
// ours. It has the record that the transaction has found.
type fencedError struct {
	standing standing
	found    *record.Range
}

func (fencedError) Error() string { return "the range is not as this delivery knows it" }

// takeOver replaces the delivery's record of the range by the one in stands, which another delivery
// has written. It sets beaten if the range is done, and not by this delivery.
func (d *delivery) takeOver(stands fencedError) {
	if stands.standing == done || stands.standing == changed {
		d.record = stands.found
		d.turn.beaten = stands.standing == done && !slices.ContainsFunc(d.turn.finished, d.record.Done.Equal)
	}
}
