package executor

import (
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A standing is how a range stands to a delivery of its task.
type standing int

const (
	// as the delivery knows it; of a transaction: it has taken effect, unless there is an error
	ours       standing = iota
	changed             // pending, but it, or its job, has changed: it has to be planned anew
	done                // another delivery has done it, or this one, and the answer was lost
	superseded          // it has another task, or is gone
	stopped             // its job does not run any more
)

// check returns how a record of the range, as it was just read, stands to the delivery. The range
// is its own only if it is still pending, at the generation that the task names, and as it was when
// the delivery looked at it.
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

// A fencedError ends a transaction on a range that is not the delivery's own, or not as it knows
// it.
type fencedError struct {
	standing standing
	found    *record.Range
}

func (fencedError) Error() string { return "the range is not as this delivery knows it" }

// mutationsOf returns what writes a range's record, and before that those of its new children.
func mutationsOf(r *record.Range, children []*record.Range) []wire.Mutation {
	all := make([]wire.Mutation, 0, len(children)+1)
	for _, child := range children {
		all = append(all, wire.Mutation{Mutation: child.Insert()})
	}
	return append(all, wire.Mutation{Mutation: r.Update()})
}

// adopt takes over what was committed, with the versions of what was written last.
func (d *delivery) adopt(r *record.Range, children []*record.Range, versions *wire.Versions) {
	d.record, r.Version = r, versions.Last(1)
	for i, child := range children {
		child.Version = versions.Last(1 + len(children) - i)
	}
}
