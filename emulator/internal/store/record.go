package store

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Version is the state of an entity after a commit that changed it. [Version.Result] returns it
// as a result.
type Version struct {
	// time of the commit in microseconds since 1970; this is also the number that clients see as
	// the version
	At      int64
	Created int64 // time of the commit that inserted the entity
	entity.Form
	Deleted bool // whether the entity is deleted; then the form has only the key
}

// versionOverhead is the estimated number of bytes that a version takes in memory besides its wire
// form.
const versionOverhead = 128

// size estimates the size of a version in memory, in bytes.
func (v Version) size() int64 { return int64(len(v.Wire(false))) + versionOverhead }

// entityField is the number of the field entity in the protocol's message EntityResult.
const entityField = 1

// Result returns the version as a result of a lookup or a query. The result has the entity's wire
// form in an unknown field, which the client decodes as the entity. So the server neither decodes
// nor encodes it.
func (v Version) Result(keysOnly bool) *pb.EntityResult {
	wire := v.Wire(keysOnly)
	r := &pb.EntityResult{
		Version:    v.At,
		CreateTime: entity.Time(v.Created),
		UpdateTime: entity.Time(v.At),
	}
	field := make([]byte, 0, len(wire)+8)
	field = protowire.AppendTag(field, entityField, protowire.BytesType)
	field = protowire.AppendBytes(field, wire)
	r.ProtoReflect().SetUnknown(field)
	return r
}

// A Record has all versions of one entity.
type Record struct {
	Path  string // the ordered form of the key
	Last  Version
	older []Version // older versions, the oldest first; open transactions may still read them
}

// At returns the version that the entity had at a time. It returns false if the entity did not
// exist then.
func (r *Record) At(time int64) (Version, bool) {
	if r.Last.At <= time {
		return r.Last, !r.Last.Deleted
	}
	for i := len(r.older) - 1; i >= 0; i-- {
		if v := r.older[i]; v.At <= time {
			return v, !v.Deleted
		}
	}
	return Version{}, false
}

// versions returns the versions in which the entity exists, without deletions.
func (r *Record) versions() []Version {
	var all []Version
	for _, v := range append(r.older[:len(r.older):len(r.older)], r.Last) {
		if !v.Deleted {
			all = append(all, v)
		}
	}
	return all
}

func (r *Record) add(v Version) {
	r.older = append(r.older, r.Last)
	r.Last = v
}

// prune drops the versions that no read sees any more, and returns them. The horizon is the
// earliest time that reads may still see, in microseconds since 1970.
func (r *Record) prune(horizon int64) []Version {
	keep := len(r.older)
	for next := r.Last.At; keep > 0 && next > horizon; keep-- {
		next = r.older[keep-1].At
	}
	dropped := slices.Clone(r.older[:keep])
	clear(r.older[:keep])
	if r.older = r.older[keep:]; len(r.older) == 0 {
		r.older = nil
	}
	return dropped
}
