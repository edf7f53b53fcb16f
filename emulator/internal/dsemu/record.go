package dsemu

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A version is an entity as one commit left it. Results carry it in its wire form, see
// [version.result].
type version struct {
	at      int64 // commit time in microseconds, which is the version's number
	created int64 // commit time of the entity's insertion
	entity.Form
	deleted bool // then the form has the key alone
}

// entityField is the number of EntityResult.entity.
const entityField = 1

// result returns the version as a result of a lookup or a query. The entity is
// put into it in wire form, as an unknown field: on the wire that is the same,
// and nothing is decoded and encoded again.
func (v version) result(keysOnly bool) *pb.EntityResult {
	wire := v.Wire(keysOnly)
	r := &pb.EntityResult{
		Version:    v.at,
		CreateTime: entity.Time(v.created),
		UpdateTime: entity.Time(v.at),
	}
	field := make([]byte, 0, len(wire)+8)
	field = protowire.AppendTag(field, entityField, protowire.BytesType)
	field = protowire.AppendBytes(field, wire)
	r.ProtoReflect().SetUnknown(field)
	return r
}

// A record is one entity's versions.
type record struct {
	path  string // ordered form of the key
	last  version
	older []version // oldest first; what open transactions may still read
}

// at returns the version that a read at a time sees.
func (r *record) at(time int64) (version, bool) {
	if r.last.at <= time {
		return r.last, !r.last.deleted
	}
	for i := len(r.older) - 1; i >= 0; i-- {
		if v := r.older[i]; v.at <= time {
			return v, !v.deleted
		}
	}
	return version{}, false
}

// versions returns those that are entities.
func (r *record) versions() []version {
	var all []version
	for _, v := range append(r.older[:len(r.older):len(r.older)], r.last) {
		if !v.deleted {
			all = append(all, v)
		}
	}
	return all
}

func (r *record) add(v version) {
	r.older = append(r.older, r.last)
	r.last = v
}

// prune drops the versions that no read at or after horizon sees, and returns
// them.
func (r *record) prune(horizon int64) []version {
	keep := len(r.older)
	for next := r.last.at; keep > 0 && next > horizon; keep-- {
		next = r.older[keep-1].at
	}
	dropped := slices.Clone(r.older[:keep])
	clear(r.older[:keep])
	if r.older = r.older[keep:]; len(r.older) == 0 {
		r.older = nil
	}
	return dropped
}
