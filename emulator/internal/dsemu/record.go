package dsemu

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A version is an entity as one commit left it.
//
// The entity is kept in its wire form, a tenth of the size of its message in
// Go, with the key's field first: its beginning is the wire form of a
// keys-only result. Equal entities have equal forms. Results carry it as it is, see [version.result].
type version struct {
	at      int64 // commit time in microseconds, which is the version's number
	created int64 // commit time of the entity's insertion
	wire    []byte
	keyLen  int  // length of the key's field in wire
	deleted bool // then wire has the key alone
}

// encode returns the wire form of an entity and the length of its key's field.
func encode(key *pb.Key, properties map[string]*pb.Value) (wire []byte, keyLen int, err error) {
	wire, err = proto.Marshal(&pb.Entity{Key: key})
	if err != nil {
		return nil, 0, invalid("key: %v", err)
	}
	keyLen = len(wire)
	wire, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(wire, &pb.Entity{Properties: properties})
	if err != nil {
		return nil, 0, invalid("entity: %v", err)
	}
	return wire, keyLen, nil
}

// key reads the key from the wire form.
func (v version) key() *pb.Key {
	return v.decode(v.wire[:v.keyLen]).Key
}

// properties reads the properties from the wire form.
func (v version) properties() map[string]*pb.Value {
	return v.decode(v.wire[v.keyLen:]).Properties
}

func (v version) decode(wire []byte) *pb.Entity {
	e := new(pb.Entity)
	if err := proto.Unmarshal(wire, e); err != nil {
		panic("dsemu: a stored entity does not decode: " + err.Error())
	}
	return e
}

// entityField is the number of EntityResult.entity.
const entityField = 1

// result returns the version as a result of a lookup or a query. The entity is
// put into it in wire form, as an unknown field: on the wire that is the same,
// and nothing is decoded and encoded again.
func (v version) result(keysOnly bool) *pb.EntityResult {
	wire := v.wire
	if keysOnly {
		wire = wire[:v.keyLen]
	}
	r := &pb.EntityResult{
		Version:    v.at,
		CreateTime: microTime(v.created),
		UpdateTime: microTime(v.at),
	}
	field := make([]byte, 0, len(wire)+8)
	field = protowire.AppendTag(field, entityField, protowire.BytesType)
	field = protowire.AppendBytes(field, wire)
	r.ProtoReflect().SetUnknown(field)
	return r
}

func microTime(micros int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: micros / 1e6, Nanos: int32(micros % 1e6 * 1e3)}
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
