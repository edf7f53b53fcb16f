package executor

import (
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
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

// mutationsOf returns the mutations for a range's record and its new children. The range's record
// comes last: adopt and inOneCall rely on it.
func mutationsOf(r *record.Range, children []*record.Range) []wire.Mutation {
	all := make([]wire.Mutation, 0, len(children)+1)
	for _, child := range children {
		all = append(all, wire.Mutation{Mutation: child.Insert()})
	}
	return append(all, wire.Mutation{Mutation: r.Update()})
}

// adopt takes over the committed records, with the versions that the commit has returned.
func (d *delivery) adopt(r *record.Range, children []*record.Range, versions *wire.Versions) {
	d.record, r.Version = r, versions.Last(1)
	for i, child := range children {
		child.Version = versions.Last(1 + len(children) - i)
	}
}
