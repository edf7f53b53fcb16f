package undo

import pb "cloud.google.com/go/datastore/apiv1/datastorepb"

// A decision says what an undo does about one entity.
type decision int

const (
	// leave the entity, because the commit did not write it, or it has its state from before the
	// commit again
	nothing decision = iota
	undone           // restore the state before the commit: nobody has changed the entity after the commit
	// look closer, because another page, this undo or another client has changed the entity since
	changed
)

// decide returns the decision about an entity that a commit may have written. The argument commit
// is the commit's version. before and now are the entity's states before the commit and now; nil if
// the entity does not exist. with returns its state just after the commit, and is called only if
// this state is needed.
func decide(commit int64, before, now *pb.EntityResult, with func() *pb.EntityResult) decision {
	switch {
	case now.GetVersion() == commit:
		return undone
	case before == nil && now == nil, before != nil && now != nil && before.Version == now.Version:
		return nothing
	}
	then := with()
	deleted := then == nil && before != nil // by this commit
	switch {
	case !deleted && then.GetVersion() != commit: // the commit has not written the entity
		return nothing
	case deleted && now == nil:
		return undone
	}
	return changed
}
