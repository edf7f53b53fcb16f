package undo

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
)

// A step is what becomes of an entity.
type step int

const (
	nothing step = iota // it is as it was before the page, or the page has not written it
	restore             // it becomes what it was: it was changed, or deleted
	remove              // it is deleted: it was not there
	leave               // it stays: somebody has changed or deleted it since
)

// decide returns what becomes of an entity that a commit of a version may have written: which was one thing before it, another with it, and
// is a third now. Nil is no entity. With is called only if it matters.
func decide(commit int64, before, now *pb.EntityResult, with func() *pb.EntityResult) step {
	switch {
	case now.GetVersion() == commit && before == nil:
		return remove
	case now.GetVersion() == commit:
		return restore
	case before == nil && now == nil, before != nil && now != nil && before.Version == now.Version:
		return nothing
	}
	then := with()
	deleted := then == nil && before != nil // by the commit
	switch {
	case !deleted && then.GetVersion() != commit: // the commit has not written it
		return nothing
	case deleted && now == nil:
		return restore
	case before != nil && now != nil && proto.Equal(before.Entity, now.Entity): // somebody has restored it
		return nothing
	}
	return leave
}
