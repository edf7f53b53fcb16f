package property

import (
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// valuesIn returns the elements of a saved array. Any other value counts as an array with one
// element.
func valuesIn(saved any) []any {
	switch v := saved.(type) {
	case []any:
		return v
	case unsaved:
		return nil
	}
	return []any{saved}
}

// mostPairs is the largest number of pairs of elements that align compares, if a type does not save
// what it has loaded.
const mostPairs = 1 << 18

// align returns, for each element of a stored array, the form in which it was saved, and whether
// that is certain. If there are fewer saved elements than stored ones, it assumes that the missing
// ones are empty: nulls, or values that omitempty leaves out.
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

// inOrder reports whether each element of an array was saved at its stored place. A type's Load or
// Save may sort the elements.
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

// isSavedAs reports whether a stored value may be saved in this form, by a type that saves what it
// loads.
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

// isEmpty reports whether a stored value is loaded as an empty one. The client does not save an
// empty value if the field has omitempty.
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
