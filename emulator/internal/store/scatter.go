package store

import (
	"crypto/md5"
	"strconv"
	"unicode/utf16"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Scatter returns the value by which a key sorts under __scatter__, and whether an entity with that
// key has the property.
//
// The value is the same as in Google's classic emulator. A 64-bit number is the XOR of the IDs, and
// of Java's 32-bit hashes of the names, along the key's path. The value is the first two bytes of
// the MD5 of the number in decimal. Kind, namespace and project play no role.
//
// In the classic emulator an entity has the property if the first byte is odd. In production one
// entity in 128 has it, by a rule that is not public. Here an entity has it if the third and fourth
// bytes, as a number, are divisible by proportion. So the value stays uniform. A proportion of 2
// gives the classic emulator's choice.
func Scatter(path []*pb.Key_PathElement, proportion int) (value [2]byte, ok bool) {
	var n int64
	for _, el := range path {
		if name, isName := el.IdType.(*pb.Key_PathElement_Name); isName {
			n ^= int64(javaHash(name.Name))
		} else {
			n ^= el.GetId()
		}
	}
	sum := md5.Sum(strconv.AppendInt(nil, n, 10))
	value = [2]byte(sum[:2])
	if proportion == 2 {
		return value, sum[0]&1 == 1
	}
	return value, (int(sum[2])<<8|int(sum[3]))%proportion == 0
}

// javaHash returns the hash that Java's String.hashCode has for a text.
func javaHash(s string) int32 {
	var h int32
	for _, unit := range utf16.Encode([]rune(s)) {
		h = 31*h + int32(unit)
	}
	return h
}
