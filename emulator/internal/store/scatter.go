package store

import (
	"crypto/md5"
	"strconv"
	"unicode/utf16"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// ScatterSize is the size of a value of the property __scatter__ in bytes.
const ScatterSize = 2

// Scatter returns a key's value of the property __scatter__, and whether an entity with this key
// has the property. Clients sample a kind by this property.
//
// The value is the same as in Google's classic emulator. It is computed in two steps. A 64-bit
// number is the XOR of all IDs in the key's path, and of Java's 32-bit hashes of all names. The
// value is the first two bytes of the MD5 hash of this number, written in decimal. Kind, namespace
// and project do not matter.
//
// In the classic emulator, an entity has the property if the first byte of the value is odd. In
// production, one entity in 128 has it, by a rule that is not public. Here, an entity has it if the
// third and fourth bytes of the MD5 hash, as a number, are divisible by proportion. So the values
// of __scatter__ are still uniform. With a proportion of 2, the same entities have it as in the
// classic emulator.
func Scatter(path []*pb.Key_PathElement, proportion int) (value [ScatterSize]byte, ok bool) {
	var n int64
	for _, el := range path {
		if name, isName := el.IdType.(*pb.Key_PathElement_Name); isName {
			n ^= int64(javaHash(name.Name))
		} else {
			n ^= el.GetId()
		}
	}
	sum := md5.Sum(strconv.AppendInt(nil, n, 10))
	value = [ScatterSize]byte(sum[:ScatterSize])
	if proportion == 2 {
		return value, sum[0]&1 == 1
	}
	return value, (int(sum[2])<<8|int(sum[3]))%proportion == 0
}

// javaHash returns what Java's String.hashCode returns for a text.
func javaHash(s string) int32 {
	var h int32
	for _, unit := range utf16.Encode([]rune(s)) {
		h = 31*h + int32(unit)
	}
	return h
}
