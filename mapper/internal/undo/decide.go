package undo

import pb "cloud.google.com/go/datastore/apiv1/datastorepb"

// A step is what becomes of an entity.
type step int

const (
	nothing step = iota // the commit has not written it, or it is as it was before
	undone              // it is as the commit has left it: it becomes what it was
	changed             // it is not: by another page, by this undo, or by somebody else
)

// decide returns what becomes of an entity that a commit of a version may have written: which was
// one thing before it, another with it, and is a third now. Nil is no entity. With is called only
// if it matters.
func decide(commit int64, before, now *pb.EntityResult, with func() *pb.EntityResult) step {
	switch {
	case now.GetVersion() == commit:
		return undone
	case before == nil && now == nil, before != nil && now != nil && before.Version == now.Version:
		return nothing
	}
	then := with()
	deleted := then == nil && before != nil // by the commit
	switch {
	case !deleted && then.GetVersion() != commit: // the commit has not written it
		return nothing
	case deleted && now == nil:
		return undone
	}
	return changed
}
