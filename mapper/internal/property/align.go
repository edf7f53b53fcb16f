package property

import (
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// valuesIn returns the elements of an array that a Go type has saved. Any other value counts as an
// array with one element. A value that was not saved has no elements.
func valuesIn(saved any) []any {
	switch v := saved.(type) {
	case []any:
		return v
	case unsaved:
		return nil
	}
	return []any{saved}
}

// mostPairs is the largest number of pairs of elements that inOrder compares. If an array has more
// pairs, its order counts as unknown.
const mostPairs = 1 << 18

// align finds out which element of a stored array was saved as which element. A Go type has loaded
// the array, and saved it unchanged. The result has the saved form of each stored element. The bool
// says whether this is certain. If fewer elements were saved than are stored, align assumes that
// empty ones were left out: nulls, or values that omitempty leaves out.
func align(stored []*pb.Value, saved []any) (all []any, ok bool) {
	for _, omitted := range []func(*pb.Value) bool{func(*pb.Value) bool { return false }, isNull, isEmpty} {
		all, rest := make([]any, len(stored)), saved
		for i, el := range stored {
			if len(saved) < len(stored) && omitted(el) {
				all[i] = unsaved{}
			} else if len(rest) > 0 {
				all[i], rest = rest[0], rest[1:]
			} else {
				rest = nil
				all = all[:i]
				break
			}
		}
		if len(rest) == 0 && len(all) == len(stored) {
			return all, inOrder(stored, all)
		}
	}
	return nil, false
}

// inOrder reports whether an array that a Go type has loaded and saved again is still in the stored
// order. The type's own Load or Save may have sorted it.
func inOrder(stored []*pb.Value, saved []any) bool {
	var unlike []int
	for i, el := range stored {
		if !isSavedAs(el, saved[i]) {
			unlike = append(unlike, i)
		}
	}
	if len(unlike)*len(unlike) > mostPairs {
		return false
	}
	for _, i := range unlike {
		for _, k := range unlike {
			if isSavedAs(stored[k], saved[i]) {
				return false
			}
		}
	}
	return true
}

// isSavedAs reports whether a Go type that loads the stored value and saves it unchanged may get
// the value saved.
func isSavedAs(stored *pb.Value, saved any) bool {
	if isUnsaved(saved) {
		return isEmpty(stored)
	}
	saved = plainValue(saved)
	if inner := stored.GetEntityValue(); inner != nil {
		e, ok := saved.(*datastore.Entity)
		if !ok {
			return false
		}
		for _, p := range e.Properties {
			if v := inner.GetProperties()[p.Name]; v != nil && !isSavedAs(v, p.Value) {
				return false
			}
		}
		return true
	}
	if stored.GetArrayValue() != nil {
		_, ok := align(value.Elements(stored), valuesIn(saved))
		return ok
	}
	if array, ok := saved.([]any); ok {
		return len(array) == 1 && isSavedAs(stored, array[0])
	}
	if isNull(stored) {
		v, err := valueOf(saved, true)
		return err == nil && isEmpty(v)
	}
	switch was := pbvalue.Go(stored).(type) {
	case []byte:
		if text, ok := saved.(string); ok {
			return text == string(was)
		}
		return equalValues(was, saved)
	case float64:
		is, ok := saved.(float64)
		return ok && (equalValues(was, is) || equalValues(float64(float32(was)), is))
	default:
		return equalValues(was, saved)
	}
}

func isNull(v *pb.Value) bool {
	_, ok := v.GetValueType().(*pb.Value_NullValue)
	return ok || v.GetValueType() == nil
}

// isEmpty reports whether the Go client would load a stored value as an empty Go value. With
// omitempty, the client does not save an empty value.
func isEmpty(v *pb.Value) bool {
	switch x := v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return !x.BooleanValue
	case *pb.Value_IntegerValue:
		return x.IntegerValue == 0
	case *pb.Value_DoubleValue:
		return x.DoubleValue == 0
	case *pb.Value_StringValue:
		return x.StringValue == ""
	case *pb.Value_BlobValue:
		return len(x.BlobValue) == 0
	case *pb.Value_TimestampValue:
		return x.TimestampValue.AsTime().IsZero()
	}
	return isNull(v)
}
