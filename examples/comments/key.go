package main

import (
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A KeyError says why nothing can be written under a key. It satisfies errors.Is for
// datastore.ErrInvalidKey. Reads, queries and deletions do not return it. They treat such a key
// like one of a comment that does not exist.
type KeyError struct {
	Key    *datastore.Key
	Reason string
}

func (e *KeyError) Error() string { return fmt.Sprintf("%v: %s", e.Key, e.Reason) }

// Is reports whether target is datastore.ErrInvalidKey.
func (e *KeyError) Is(target error) bool {
	return target == datastore.ErrInvalidKey
}

// GRPCStatus returns the error as the status that Datastore would return.
func (e *KeyError) GRPCStatus() *status.Status { return status.New(codes.InvalidArgument, e.Error()) }

// keyErrors has the KeyErrors of the mutations in a commit: by key for deletions, and by position
// for others.
type keyErrors struct {
	byKey      map[string]*KeyError
	byPosition map[int]*KeyError
}

func (e *keyErrors) Error() string {
	var all []string
	for _, err := range e.byKey {
		all = append(all, err.Error())
	}
	if len(all) == 0 {
		for _, err := range e.byPosition {
			all = append(all, err.Error())
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if n := len(all); n > 3 {
		all = append(all[:3], fmt.Sprintf("and %d more", n-3))
	}
	return strings.Join(all, "; ")
}

// Is reports whether target is datastore.ErrInvalidKey.
func (e *keyErrors) Is(target error) bool {
	return target == datastore.ErrInvalidKey
}

// GRPCStatus returns the errors as the status that Datastore would return.
func (e *keyErrors) GRPCStatus() *status.Status { return status.New(codes.InvalidArgument, e.Error()) }

// add records the error about the key at a position. It ignores a nil error.
func (e *keyErrors) add(position int, err *KeyError) {
	if err == nil {
		return
	}
	if e.byKey == nil {
		e.byKey, e.byPosition = make(map[string]*KeyError), make(map[int]*KeyError)
	}
	if !err.Key.Incomplete() {
		e.byKey[nameOf(err.Key)] = err
	}
	e.byPosition[position] = err
}

func (e *keyErrors) err() error {
	if len(e.byPosition) == 0 {
		return nil
	}
	return e
}

// own reports whether a key has the kind that callers use for comments.
func own(key *pb.Key) bool {
	path := key.GetPath()
	return len(path) > 0 && path[len(path)-1].GetKind() == plainKind
}

// clientKey converts a key from its protocol buffer.
func clientKey(key *pb.Key) (k *datastore.Key) {
	for _, el := range key.GetPath() {
		k = &datastore.Key{Kind: el.GetKind(), ID: el.GetId(), Name: el.GetName(), Parent: k,
			Namespace: key.GetPartitionId().GetNamespaceId()}
	}
	return k
}

// nameOf returns a key's namespace and path as a text.
func nameOf(key *datastore.Key) string { return fmt.Sprintf("%q%v", key.Namespace, key) }

// under returns the key of a comment that is stored in a kind. In the plain kind, which callers
// use, the comment has the key that callers see.
func (d *database) under(kind string, id ID) *pb.Key {
	return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: d.project, DatabaseId: d.name},
		Path: []*pb.Key_PathElement{{Kind: kind, IdType: &pb.Key_PathElement_Id{Id: int64(id)}}}}
}

// shaped returns the ID in a key of the plain kind, or 0 for an incomplete key. It returns an error
// if no comment can have the key.
func (r *router) shaped(key *pb.Key) (ID, *KeyError) {
	k := clientKey(key)
	id := ID(k.ID)
	reason := ""
	switch {
	case k.Namespace != "":
		reason = "comments are in the default namespace"
	case k.Parent != nil:
		reason = "comments have no parent: their shard is that of their order"
	case k.Name != "":
		reason = "comments have IDs, which name their shard, and no names"
	case id < 0:
		reason = "the ID is damaged: it is negative"
	case id == 0:
		return 0, nil
	case id.Physical() >= len(r.databases):
		reason = fmt.Sprintf("the ID is damaged: it names database %d of %d", id.Physical(), len(r.databases))
	case id.Logical()%len(r.databases) != id.Physical():
		reason = fmt.Sprintf("the ID is damaged: it names logical shard %d in database %d, which has others",
			id.Logical(),
			id.Physical())
	}
	if reason != "" {
		return 0, &KeyError{Key: k, Reason: reason}
	}
	return id, nil
}

// places returns the kinds that may have the comment with an ID, by the layout of the session's
// database. It returns an error if no kind can have it.
func (s *session) places(id ID) ([]string, *KeyError) {
	places := s.layout.places(id)
	if len(places) == 0 {
		return nil, &KeyError{Key: clientKey(s.db.under(plainKind, id)), Reason: fmt.Sprintf(
			"the ID belongs to no shard: it names logical shard %d, and there have only been %v", id.Logical(),
			append(slices.Clone(s.layout.Before), s.layout.read()...))}
	}
	return places, nil
}
