package entity

import (
	"bytes"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Form is an entity in its wire form, which takes a tenth of the memory of the decoded message.
// The key's field comes first, so the start of the form is the wire form of a keys-only result. The
// properties follow in the order of their names. So equal entities have equal forms.
type Form struct {
	wire    []byte
	keyLen  int32 // number of bytes of the key's field
	indexed int32 // number of the entity's values that indexes contain
}

// New returns the form of an entity that has a key and no properties.
func New(key *pb.Key) (Form, error) {
	wire, err := proto.Marshal(&pb.Entity{Key: key})
	if err != nil {
		return Form{}, model.Invalid("key: %v", err)
	}
	return Form{wire: wire, keyLen: int32(len(wire))}, nil
}

// KeyOnly returns the form of the entity without its properties.
func (f Form) KeyOnly() Form {
	return Form{wire: f.wire[:f.keyLen:f.keyLen], keyLen: f.keyLen}
}

// Clone returns a copy of the form that shares no memory with the original.
func (f Form) Clone() Form {
	f.wire = bytes.Clone(f.wire)
	return f
}

// With returns the form of an entity with the same key and the given properties.
func (f Form) With(properties map[string]*pb.Value) (Form, error) {
	f = f.KeyOnly()
	var err error
	if f.wire, err = encode(f.wire, properties); err != nil {
		return f, err
	}
	return f.count(countIndexed(properties))
}

// count returns the form with its field indexed set to n. It returns an error if an entity may not
// have n indexed values.
func (f Form) count(n int) (Form, error) {
	if n > maxIndexed {
		return f, model.Invalid("an entity has at most %d indexed values, this one has %d", maxIndexed, n)
	}
	f.indexed = int32(n)
	return f, nil
}

// Splice applies a property mask. It gives the properties with the given names the values that they
// have in the map from. A property that this map lacks is removed. The result is the same as
// [Mask]'s, but Splice decodes only the properties that it removes.
func (f Form) Splice(names []string, from map[string]*pb.Value) (Form, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	indexed := int(f.indexed)
	parts := append(make([][]byte, 0, 16), f.wire[:f.keyLen])
	insert := func(name string) error {
		v, ok := from[name]
		if !ok {
			return nil
		}
		indexed += countIndexedOf(v)
		part, err := encode(nil, map[string]*pb.Value{name: v})
		parts = append(parts, part)
		return err
	}
	for rest := f.wire[f.keyLen:]; len(rest) > 0; {
		wire, n := firstProperty(rest)
		name := string(wire)
		for len(names) > 0 && names[0] < name {
			if err := insert(names[0]); err != nil {
				return f, err
			}
			names = names[1:]
		}
		if len(names) > 0 && names[0] == name { // it is inserted before the next one
			indexed -= countIndexed(decode(rest[:n]).Properties)
		} else {
			parts = append(parts, rest[:n])
		}
		rest = rest[n:]
	}
	for _, name := range names {
		if err := insert(name); err != nil {
			return f, err
		}
	}
	return Form{wire: slices.Concat(parts...), keyLen: f.keyLen}.count(indexed)
}

// firstProperty returns the name of the first property in wire, and the number of bytes that the
// property takes. In wire form, a property is an entry of a map, and starts with its name.
func firstProperty(wire []byte) (name []byte, length int) {
	_, _, tag := protowire.ConsumeTag(wire)
	entry, n := protowire.ConsumeBytes(wire[tag:])
	_, _, keyTag := protowire.ConsumeTag(entry)
	name, _ = protowire.ConsumeBytes(entry[keyTag:])
	return name, tag + n
}

// TopLevel returns the names in a property mask. It returns false if one of them names a property
// of a nested entity.
func TopLevel(mask *pb.PropertyMask) (names []string, ok bool) {
	names = mask.GetPaths()
	return names, mask != nil && !slices.ContainsFunc(names, func(name string) bool {
		return name == "" || model.Reserved(name) || strings.ContainsAny(name, ".\\`")
	})
}

// encode appends the wire form of properties to wire.
func encode(wire []byte, properties map[string]*pb.Value) ([]byte, error) {
	wire, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(wire, &pb.Entity{Properties: properties})
	if err != nil {
		return nil, model.Invalid("entity: %v", err)
	}
	return wire, nil
}

// Key decodes the key.
func (f Form) Key() *pb.Key { return decode(f.wire[:f.keyLen]).Key }

// Properties decodes the properties.
func (f Form) Properties() map[string]*pb.Value { return decode(f.wire[f.keyLen:]).Properties }

// Some decodes only some of the properties: it decodes those for whose names the function wanted
// returns true. This is several times faster than decoding all properties.
func (f Form) Some(wanted func(name []byte) bool) map[string]*pb.Value {
	some := new(pb.Entity)
	rest, run := f.wire[f.keyLen:], 0 // length of the wanted part of rest so far
	for run < len(rest) {
		name, n := firstProperty(rest[run:])
		if wanted(name) {
			run += n
			continue
		}
		if run > 0 {
			merge(some, rest[:run])
		}
		rest, run = rest[run+n:], 0
	}
	if run > 0 {
		merge(some, rest)
	}
	return some.Properties
}

func merge(e *pb.Entity, wire []byte) {
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(wire, e); err != nil {
		panic("dsemu: a stored entity does not decode: " + err.Error())
	}
}

func decode(wire []byte) *pb.Entity {
	e := new(pb.Entity)
	merge(e, wire)
	return e
}

// Wire returns the wire form of the entity, or only its key in wire form.
func (f Form) Wire(keyOnly bool) []byte {
	if keyOnly {
		return f.wire[:f.keyLen]
	}
	return f.wire
}

// Equal reports whether the entities are equal.
func (f Form) Equal(other Form) bool { return bytes.Equal(f.wire, other.wire) }

// Indexed returns how many of the entity's values indexes contain.
func (f Form) Indexed() int { return int(f.indexed) }

// maxIndexed is the largest number of indexed values of an entity, from the limits page of
// Datastore.
const maxIndexed = 20000

// countIndexed counts the values that indexes contain.
func countIndexed(properties map[string]*pb.Value) int {
	n := 0
	for _, v := range properties {
		n += countIndexedOf(v)
	}
	return n
}

func countIndexedOf(v *pb.Value) int {
	switch value := v.GetValueType().(type) {
	case *pb.Value_ArrayValue:
		if v.ExcludeFromIndexes { // a vector is one value, not an array
			return 0
		}
		n := 0
		for _, el := range value.ArrayValue.GetValues() {
			n += countIndexedOf(el)
		}
		return n
	case *pb.Value_EntityValue:
		if v.ExcludeFromIndexes {
			return 0
		}
		return countIndexed(value.EntityValue.GetProperties())
	}
	if v.GetExcludeFromIndexes() {
		return 0
	}
	return 1
}
