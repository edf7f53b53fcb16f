package undo

import pb "cloud.google.com/go/datastore/apiv1/datastorepb"

// A step says what an undo does with an entity.
type step int

const (
	nothing step = iota // leave it: the commit did not write it, or it is as before the commit
	undone              // restore its state before the commit: it is as the commit left it
	changed             // look closer: another page, this undo or somebody else changed it since
)

// decide returns the step for an entity that a commit may have written. The commit is given by its
// version; before and now are the entity before it and now, nil if it was not there. With returns
// the entity as the commit left it, and is called only if needed.
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
