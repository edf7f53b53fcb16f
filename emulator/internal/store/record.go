package store

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Version is an entity after a commit. Results carry it in wire form: see [Version.Result].
type Version struct {
	At      int64 // commit time in microseconds, which is also the version's number
	Created int64 // commit time of the entity's insertion
	entity.Form
	Deleted bool // the form then has only the key
}

// versionOverhead estimates the memory of a version besides its bytes.
const versionOverhead = 128

// size estimates the memory of a version in bytes.
func (v Version) size() int64 { return int64(len(v.Wire(false))) + versionOverhead }

// entityField is the field number of EntityResult.entity.
const entityField = 1

// Result returns the version as a result of a lookup or a query. The entity is put into it in wire
// form, as an unknown field. On the wire that makes no difference, and saves decoding and encoding.
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
	Path  string // ordered form of the key
	Last  Version
	older []Version // oldest first; open transactions may still read them
}

// At returns the version that a read at a time sees.
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

// prune drops the versions that no read at or after horizon sees, and returns them.
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
