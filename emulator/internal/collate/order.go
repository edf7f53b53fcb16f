// Package collate encodes keys and values as bytes that are in Datastore's order.
//
// The encoding of a key or value is called its ordered form. Two forms compare, as bytes, in the
// same way as their keys or values. No form is a prefix of another, so forms can be concatenated.
// For descending order they can be inverted.
package collate

import (
	"encoding/binary"
	"math"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Bytes in the ordered form of a key. Keys are ordered element by element, an ancestor before its
// descendants. Kinds compare as bytes. IDs come before names; IDs compare as signed integers, names
// as bytes.
const (
	PathEnd     byte = 0x00 // the byte after the last element of a path; less than PathElement
	PathElement byte = 0x01 // the byte before each element of a path
	idTag       byte = 0x01
	nameTag     byte = 0x02
)

// First bytes of the ordered forms of values. They put values of different types in the same order
// as both of Google's emulators do. Integers and timestamps share a byte, and so do strings and
// blobs.
const (
	nullTag byte = 0x10 + iota
	integerTag
	booleanTag
	bytesTag
	doubleTag
	geoPointTag
	keyTag
	entityTag
)

// appendBytes appends the ordered form of the bytes s. In this form, each zero byte of s is
// escaped, and an end mark follows the last byte. The end mark sorts before every plain or escaped
// byte.
func appendBytes[S string | []byte](dst []byte, s S) []byte {
	for i := range len(s) {
		dst = append(dst, s[i])
		if s[i] == 0 {
			dst = append(dst, 0xFF)
		}
	}
	return append(dst, 0x00, 0x01)
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(n)^(1<<63))
}

// appendFloat64 appends the ordered form of the double f to dst. Negative zero comes before zero,
// and NaN after all other numbers.
func appendFloat64(dst []byte, f float64) []byte {
	bits := math.Float64bits(f)
	switch {
	case f != f:
		bits = math.MaxUint64
	case bits>>63 == 1:
		bits = ^bits
	default:
		bits |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(dst, bits)
}

// appendElements appends the ordered form of a path, without the mark at its end. So the result is
// a prefix of the ordered forms of all descendants of this path.
func appendElements(dst []byte, path []*pb.Key_PathElement) []byte {
	for _, el := range path {
		dst = append(dst, PathElement)
		dst = appendBytes(dst, el.Kind)
		if name, ok := el.IdType.(*pb.Key_PathElement_Name); ok {
			dst = append(dst, nameTag)
			dst = appendBytes(dst, name.Name)
		} else {
			dst = append(dst, idTag)
			dst = appendInt64(dst, el.GetId())
		}
	}
	return dst
}

// AppendPath appends the ordered form of a key's path to dst. Compared as bytes, these forms are in
// Datastore's order of keys.
func AppendPath(dst []byte, path []*pb.Key_PathElement) []byte {
	return append(appendElements(dst, path), PathEnd)
}

// Value returns the ordered form of a value that is not an array. Compared as bytes, these forms
// are in Datastore's order of values.
func Value(v *pb.Value) string { return string(appendValue(make([]byte, 0, 32), v)) }

func appendValue(dst []byte, v *pb.Value) []byte {
	switch v := v.ValueType.(type) {
	case *pb.Value_IntegerValue:
		return appendInt64(append(dst, integerTag), v.IntegerValue)
	case *pb.Value_TimestampValue:
		micros := v.TimestampValue.GetSeconds()*1e6 + int64(v.TimestampValue.GetNanos()/1e3)
		return appendInt64(append(dst, integerTag), micros)
	case *pb.Value_BooleanValue:
		if v.BooleanValue {
			return append(dst, booleanTag, 1)
		}
		return append(dst, booleanTag, 0)
	case *pb.Value_StringValue:
		return appendBytes(append(dst, bytesTag), v.StringValue)
	case *pb.Value_BlobValue:
		return appendBytes(append(dst, bytesTag), v.BlobValue)
	case *pb.Value_DoubleValue:
		return appendFloat64(append(dst, doubleTag), v.DoubleValue)
	case *pb.Value_GeoPointValue:
		dst = appendFloat64(append(dst, geoPointTag), v.GeoPointValue.GetLatitude())
		return appendFloat64(dst, v.GeoPointValue.GetLongitude())
	case *pb.Value_KeyValue:
		of := v.KeyValue.GetPartitionId()
		dst = appendBytes(append(dst, keyTag), of.GetProjectId())
		dst = appendBytes(dst, of.GetDatabaseId())
		dst = appendBytes(dst, of.GetNamespaceId())
		return AppendPath(dst, v.KeyValue.GetPath())
	case *pb.Value_EntityValue:
		return append(dst, entityTag)
	default:
		return append(dst, nullTag)
	}
}

// Invert turns an ordered form into the form for descending order, and back.
func Invert(form string) string {
	b := []byte(form)
	for i := range b {
		b[i] = ^b[i]
	}
	return string(b)
}

// Ancestors returns the paths of an entity's ancestors and of the entity itself, as index entries
// without values. The argument is the ordered form of the entity's path.
func Ancestors(path string) []Entry {
	var all []Entry
	for i := 0; i < len(path) && path[i] == PathElement; {
		i = skipBytes(path, i+1) // skips the kind
		if path[i] == idTag {
			i += 1 + 8
		} else {
			i = skipBytes(path, i+1)
		}
		all = append(all, Entry{Form: path[:i] + string(PathEnd)})
	}
	return all
}

// FirstName returns the kind and the name of the first element of a path, which is given in ordered
// form. The result ok is false if this element has no name.
func FirstName(path string) (kind, name string, ok bool) {
	if path == "" || path[0] != PathElement {
		return "", "", false
	}
	kind, rest, ok := cutBytes(path[1:])
	if !ok || rest == "" || rest[0] != nameTag {
		return "", "", false
	}
	name, _, ok = cutBytes(rest[1:])
	return kind, name, ok
}

// cutBytes decodes the bytes at the start of form, which appendBytes has encoded. It returns them
// as plain, and the rest of form. The result ok is false if form does not start with such bytes.
func cutBytes(form string) (plain, rest string, ok bool) {
	var b []byte
	for i := 0; i+1 < len(form); i++ {
		if form[i] == 0 && form[i+1] == 1 {
			return string(b), form[i+2:], true
		}
		b = append(b, form[i])
		if form[i] == 0 {
			if i++; form[i] != 0xFF {
				break
			}
		}
	}
	return "", "", false
}

// CutPath returns the rest of form after the path at its start, and the kind of the path's last
// element. The result ok is false if form does not start with the ordered form of a path.
func CutPath(form string) (kind, rest string, ok bool) {
	for rest = form; rest != "" && rest[0] == PathElement; {
		if kind, rest, ok = cutBytes(rest[1:]); !ok || rest == "" {
			return "", "", false
		}
		switch tag := rest[0]; {
		case tag == idTag && len(rest) > 8:
			rest = rest[1+8:]
		case tag == nameTag:
			if _, rest, ok = cutBytes(rest[1:]); !ok {
				return "", "", false
			}
		default:
			return "", "", false
		}
	}
	if !ok || rest == "" || rest[0] != PathEnd {
		return "", "", false
	}
	return kind, rest[1:], true
}

// sizes has the sizes of the ordered forms whose size depends on the type only, by their first
// byte.
var sizes = map[byte]int{
	nullTag: 1, integerTag: 1 + 8, booleanTag: 1 + 1, doubleTag: 1 + 8, geoPointTag: 1 + 8 + 8, entityTag: 1,
}

// CutValue returns the rest of form after the value at its start. The result ok is false if form
// does not start with the ordered form of a value.
func CutValue(form string) (rest string, ok bool) {
	if form == "" {
		return "", false
	}
	if n, fixed := sizes[form[0]]; fixed {
		return form[min(n, len(form)):], len(form) >= n
	}
	rest = form[1:]
	switch form[0] {
	case bytesTag:
		_, rest, ok = cutBytes(rest)
	case keyTag:
		ok = true
		for range 3 { // project, database and namespace
			if ok {
				_, rest, ok = cutBytes(rest)
			}
		}
		if ok {
			_, rest, ok = CutPath(rest)
		}
	}
	return rest, ok
}

// skipBytes returns the index after the ordered form of bytes that starts at i.
func skipBytes(form string, i int) int {
	for form[i] != 0 || form[i+1] != 1 {
		if form[i] == 0 {
			i++ // skips an escaped zero
		}
		i++
	}
	return i + 2
}

// An Entry is one indexed value of an entity, with the ordered form of the value.
type Entry struct {
	Form  string
	Value *pb.Value
}

// Entries returns the values that an index of the property name holds for an entity with these
// properties. An array has a value for each of its elements. A name with a dot, as in a.b, means
// property b of the nested entity a. Values that are excluded from indexes are left out.
func Entries(properties map[string]*pb.Value, name string) []Entry {
	values := EntriesOf(properties[name])
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		outer := properties[name[:i]]
		if outer == nil || outer.ExcludeFromIndexes {
			continue
		}
		elements := outer.GetArrayValue().GetValues()
		if outer.GetEntityValue() != nil {
			elements = []*pb.Value{outer}
		}
		for _, el := range elements {
			if e := el.GetEntityValue(); e != nil && !el.ExcludeFromIndexes {
				values = append(values, Entries(e.Properties, name[i+1:])...)
			}
		}
	}
	return values
}

// EntriesOf returns the values that an index holds for the property value v: one, or one for each
// element of an array. It leaves out nested entities, and values that are excluded from indexes.
func EntriesOf(v *pb.Value) []Entry {
	if v == nil || v.ExcludeFromIndexes || v.GetEntityValue() != nil {
		return nil
	}
	array, ok := v.ValueType.(*pb.Value_ArrayValue)
	if !ok {
		return []Entry{{Value(v), v}}
	}
	var values []Entry
	for _, el := range array.ArrayValue.GetValues() {
		if !el.ExcludeFromIndexes && el.GetEntityValue() == nil {
			values = append(values, Entry{Value(el), el})
		}
	}
	return values
}
