package undo

import pb "cloud.google.com/go/datastore/apiv1/datastorepb"

// A step is the decision of an undo about an entity.
type step int

const (
	nothing step = iota // leave the entity: the commit did not write it, or it has its state from before the commit
	undone              // restore the state before the commit: nobody has changed the entity after the commit
	changed             // look closer: another page, this undo or somebody else has changed the entity since
)

// decide returns the step for an entity that a commit may have written. The argument commit is the
// commit's version. The states of the entity before the commit and now are before and now; nil if
// it did not exist. The function with returns its state just after the commit, and is called only
// if needed.
func decide(commit int64, before, now *pb.EntityResult, with func() *pb.EntityResult) step {
	switch {
	case now.GetVersion() == commit:
		return undone
	case before == nil && now == nil, before != nil && now != nil && before.Version == now.Version:
		return nothing
	}
	then := with()
	deleted := then == nil && before != nil // by this commit
	switch {
	case !deleted && then.GetVersion() != commit: // the commit has not written it
		return nothing
	case deleted && now == nil:
		return undone
	}
	return changed
}
