package model

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Meanings with rules of their own. A meaning is a number stored with a value. By it, older clients
// marked what the value stands for.
const (
	timeMeaning       = 7 // an integer that is a time, from older clients without a type for times
	ratingMeaning     = 13
	textMeaning       = 15 // a long text
	byteStringMeaning = 16 // a short blob that is indexed
	userMeaning       = 20 // an entity that is a user of App Engine
	compressedMeaning = 22 // a compressed property of NDB
	vectorMeaning     = 31

	maxRating = 100
	maxVector = 2048 // the maximum number of elements of a vector, from the page on Datastore's limits
)

// A meaningType is the type that a value with a meaning must have.
type meaningType string

const (
	ofText    meaningType = "string_value"
	ofInteger meaningType = "integer_value"
	ofBlob    meaningType = "blob_value"
	ofEntity  meaningType = "entity_value"
	ofPoint   meaningType = "geo_point_value"
	ofVector  meaningType = "vector"
)

// meanings has the meanings that Google's Firestore emulator accepts, with the type that a value
// with this meaning must have.
var meanings = map[int32]meaningType{
	1: ofText, 2: ofText, 3: ofText, 4: ofText, 5: ofText, 6: ofText, timeMeaning: ofInteger, 8: ofText,
	10: ofText, 11: ofText, 12: ofText, ratingMeaning: ofInteger, textMeaning: ofText,
	byteStringMeaning: ofBlob, 17: ofText,
	userMeaning: ofEntity, compressedMeaning: ofBlob, 29: ofInteger, 30: ofInteger, vectorMeaning: ofVector,
}

// neverTaken has meanings that are no longer accepted for any value, with the type that their
// values had. The errors for them name this type.
var neverTaken = map[int32]meaningType{19: ofBlob, 23: ofPoint}

// lastUnexpected is the highest meaning that Datastore has ever used.
const lastUnexpected = 39

// checkMeaning checks a value's meaning. It returns the same errors as Google's Firestore emulator.
// If the meaning has no effect, checkMeaning removes it.
func checkMeaning(name string, v *pb.Value) error {
	m := v.GetMeaning()
	array, isArray := v.GetValueType().(*pb.Value_ArrayValue)
	switch {
	case m == 0:
		return nil
	case m == vectorMeaning && isArray:
		return checkVector(name, v.ExcludeFromIndexes, array.ArrayValue.GetValues())
	case isArray:
		return Invalid("A Value containing a list_value cannot specify a meaning.")
	case m == ProjectionMeaning:
		return Invalid("the property %q has meaning %d, which only results of projections have", name,
			ProjectionMeaning)
	}
	if wanted, ok := neverTaken[m]; ok {
		if typeOf(v) == wanted {
			return Invalid("Unknown meaning %d.", m)
		}
		return notOfType(name, m, wanted)
	}
	switch wanted, ok := meanings[m]; {
	case !ok && m > 0 && m <= lastUnexpected:
		return Invalid("Unexpected value meaning %d.", m)
	case !ok:
		return Invalid("Unknown value meaning %d.", m)
	case typeOf(v) != wanted:
		return notOfType(name, m, wanted)
	}
	return checkMeant(m, v)
}

// checkMeant checks the value v by the rules of its meaning m. The caller has checked the value's
// type.
func checkMeant(m int32, v *pb.Value) error {
	switch m {
	case textMeaning, compressedMeaning:
		if !v.ExcludeFromIndexes {
			return Invalid("Indexed value has meaning %d.", m)
		}
	case byteStringMeaning:
		if !v.ExcludeFromIndexes {
			v.Meaning = 0 // clients need not send it, because every indexed blob has this meaning
		}
	case timeMeaning:
		if n := v.GetIntegerValue(); n >= minSeconds*1e6 && n < (maxSeconds+1)*1e6 {
			return Invalid("A timestamp in range [0001-01-01T00:00:00Z, 9999-12-31T23:59:59.999999Z] " +
				"must be stored as a timestamp value.")
		}
	case ratingMeaning:
		if n := v.GetIntegerValue(); n < 0 || n > maxRating {
			return Invalid("Percent value outside permitted range [0, %d].", maxRating)
		}
	case userMeaning:
		return checkUser(v.GetEntityValue().GetProperties())
	}
	return nil
}

func notOfType(name string, meaning int32, wanted meaningType) error {
	return Invalid("Value %q has a meaning %d which does not match %s field.", name, meaning, wanted)
}

func typeOf(v *pb.Value) meaningType {
	switch v.GetValueType().(type) {
	case *pb.Value_StringValue:
		return ofText
	case *pb.Value_IntegerValue:
		return ofInteger
	case *pb.Value_BlobValue:
		return ofBlob
	case *pb.Value_EntityValue:
		return ofEntity
	case *pb.Value_GeoPointValue:
		return ofPoint
	}
	return ""
}

// checkUser checks an entity with the meaning of an App Engine user: which properties it has.
func checkUser(properties map[string]*pb.Value) error {
	known := map[string]bool{"email": true, "auth_domain": true, "user_id": true,
		"federated_identity": true, "federated_provider": true}
	for name, v := range properties {
		switch {
		case !known[name]:
			return Invalid("The user entity property %q is not allowed.", name)
		case typeOf(v) != ofText:
			return Invalid("The user entity property %q is no string.", name)
		case !v.ExcludeFromIndexes:
			return Invalid("The user entity property %q is indexed.", name)
		}
	}
	for _, name := range []string{"email", "auth_domain"} {
		if properties[name] == nil {
			return Invalid("The user entity is missing required property %q.", name)
		}
	}
	return nil
}

// checkVector checks the elements of an array that is a vector: they must be doubles, at least one
// and at most maxVector. A vector must also be unindexed. Errors contain the property's name.
func checkVector(name string, unindexed bool, elements []*pb.Value) error {
	switch {
	case !unindexed:
		return Invalid("Vector's must be excluded from indexes.")
	case len(elements) == 0:
		return Invalid("Cannot have a zero length vector.")
	case len(elements) > maxVector:
		return Invalid("the vector %q has at most %d elements, this one has %d", name, maxVector, len(elements))
	}
	for _, el := range elements {
		if _, ok := el.GetValueType().(*pb.Value_DoubleValue); !ok {
			return Invalid("Vector must only contain values of type 'double'.")
		}
	}
	return nil
}
