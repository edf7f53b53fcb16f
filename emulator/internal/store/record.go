package store

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Version is an entity after a commit. Results contain it in wire form: see [Version.Result].
type Version struct {
	At      int64 // time of the commit in microseconds, which is also the version's number
	Created int64 // time of the commit that inserted the entity
	entity.Form
	Deleted bool // whether the entity is deleted; then the form has only the key
}

// versionOverhead is the estimated size of a version in memory, besides its bytes.
const versionOverhead = 128

// size estimates the size of a version in memory, in bytes.
func (v Version) size() int64 { return int64(len(v.Wire(false))) + versionOverhead }

// entityField is the number of the field entity in the message EntityResult.
const entityField = 1

// Result returns the version as a result of a lookup or a query. It contains the entity in wire
// form, as an unknown field. On the wire that makes no difference, and it saves decoding and
// encoding.
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

// A Record has one entity's versions.
type Record struct {
	Path  string // the ordered form of the key
	Last  Version
	older []Version // older versions, the oldest first; open transactions may still read them
}

// At returns the version at a time, as a read of that time sees it. It returns false if there is
// none.
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

// versions returns the versions that are not deletions.
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

// prune drops the versions that no read of a time from horizon on sees, and returns them.
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
