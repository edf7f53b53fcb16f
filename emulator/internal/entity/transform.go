package entity

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// MaxTransforms is the largest number of transforms of one entity in a commit.
const MaxTransforms = 500

// CheckTransforms checks the parts of transforms that do not depend on the stored entity.
func CheckTransforms(db model.Database, transforms []*pb.PropertyTransform) error {
	var paths [][]string
	for _, t := range transforms {
		names, err := splitPath(t.GetProperty())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(names, model.Reserved) {
			return model.Invalid("a transform can't be of the property %s", t.Property)
		}
		paths = append(paths, names)
		switch op := t.TransformType.(type) {
		case *pb.PropertyTransform_SetToServerValue:
			if op.SetToServerValue != pb.PropertyTransform_REQUEST_TIME {
				return model.Invalid("the transform of %q sets no server value that exists", t.Property)
			}
		case *pb.PropertyTransform_Increment:
			err = checkOperand(t.Property, op.Increment)
		case *pb.PropertyTransform_Maximum:
			err = checkOperand(t.Property, op.Maximum)
		case *pb.PropertyTransform_Minimum:
			err = checkOperand(t.Property, op.Minimum)
		case *pb.PropertyTransform_AppendMissingElements:
			err = db.CheckValue(t.Property, Array(op.AppendMissingElements.GetValues()), 0, false)
		case *pb.PropertyTransform_RemoveAllFromArray:
			err = db.CheckValue(t.Property, Array(op.RemoveAllFromArray.GetValues()), 0, false)
		default:
			return model.Invalid("the transform of %q has no type", t.Property)
		}
		if err != nil {
			return err
		}
	}
	return checkNested(paths)
}

// checkNested returns an error if one of the paths of transforms leads to an entity, and another one
// to a property inside it. Google's Firestore emulator does the same.
func checkNested(paths [][]string) error {
	slices.SortFunc(paths, slices.Compare[[]string])
	paths = slices.CompactFunc(paths, slices.Equal[[]string])
	for i := 1; i < len(paths); i++ {
		outer := paths[i-1]
		if inner := paths[i]; len(inner) > len(outer) && slices.Equal(inner[:len(outer)], outer) {
			return model.Invalid("Cannot transform property %s and its nested property at the same time.",
				strings.Join(outer, "."))
		}
	}
	return nil
}

func checkOperand(property string, operand *pb.Value) error {
	if !isNumber(operand) {
		return model.Invalid("the transform of %q needs an integer or a double", property)
	}
	return nil
}

// Transform applies property transforms to a copy of properties. CheckTransforms must have accepted
// them. It returns the copy, and each transform's result. The rules are in the comments of the
// protocol's PropertyTransform.
func Transform(
	db model.Database, properties map[string]*pb.Value, transforms []*pb.PropertyTransform, at int64,
) (map[string]*pb.Value, []*pb.Value, error) {
	properties = maps.Clone(properties)
	if properties == nil {
		properties = make(map[string]*pb.Value)
	}
	var results []*pb.Value
	for _, t := range transforms {
		names, err := splitPath(t.Property)
		if err != nil {
			return nil, nil, err
		}
		after, result := transformed(at, get(properties, names), t)
		set(properties, names, after)
		results = append(results, result)
	}
	return properties, results, db.CheckProperties(properties)
}

// get returns the value at a path, or nil.
func get(properties map[string]*pb.Value, names []string) *pb.Value {
	v := properties[names[0]]
	if len(names) == 1 {
		return v
	}
	return get(v.GetEntityValue().GetProperties(), names[1:])
}

// set stores a value at a path. If a value on the way is no entity, set replaces it by one.
func set(properties map[string]*pb.Value, names []string, v *pb.Value) {
	if len(names) == 1 {
		properties[names[0]] = v
		return
	}
	outer := properties[names[0]]
	inner := maps.Clone(outer.GetEntityValue().GetProperties())
	if inner == nil {
		inner = make(map[string]*pb.Value)
	}
	set(inner, names[1:], v)
	properties[names[0]] = &pb.Value{
		ExcludeFromIndexes: outer.GetExcludeFromIndexes(),
		ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: outer.GetEntityValue().GetKey(),
			Properties: inner}},
	}
}

// transformed applies one transform to the value v of a property, at a time in microseconds. It
// returns the property's new value, and the transform's result in the commit's answer.
func transformed(at int64, v *pb.Value, t *pb.PropertyTransform) (after, result *pb.Value) {
	null := &pb.Value{ValueType: &pb.Value_NullValue{}}
	switch op := t.TransformType.(type) {
	case *pb.PropertyTransform_SetToServerValue:
		const millisecond = 1000 // in microseconds; a server time is in whole milliseconds
		after = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: Time(at - at%millisecond)}}
	case *pb.PropertyTransform_Increment:
		after = number(v, op.Increment, add)
	case *pb.PropertyTransform_Maximum:
		after = number(v, op.Maximum, func(a, b *pb.Value) *pb.Value { return extreme(a, b, 1) })
	case *pb.PropertyTransform_Minimum:
		after = number(v, op.Minimum, func(a, b *pb.Value) *pb.Value { return extreme(a, b, -1) })
	case *pb.PropertyTransform_AppendMissingElements:
		elements := slices.Clone(v.GetArrayValue().GetValues())
		for _, el := range op.AppendMissingElements.GetValues() {
			if !slices.ContainsFunc(elements, func(have *pb.Value) bool { return sameValue(have, el) }) {
				elements = append(elements, el)
			}
		}
		return Array(elements), null
	case *pb.PropertyTransform_RemoveAllFromArray:
		elements := slices.DeleteFunc(slices.Clone(v.GetArrayValue().GetValues()), func(have *pb.Value) bool {
			return slices.ContainsFunc(op.RemoveAllFromArray.GetValues(), func(el *pb.Value) bool {
				return sameValue(have, el)
			})
		})
		return Array(elements), null
	}
	return after, after
}

// sameValue reports whether two elements of arrays count as the same in a transform. Numbers
// compare by value. Null and NaN equal themselves. Entities and arrays compare by their contents,
// and other values must have the same type. It does not matter whether they are indexed.
func sameValue(a, b *pb.Value) bool {
	if isNumber(a) && isNumber(b) {
		x, y := float(a), float(b)
		return compareNumbers(a, b) == 0 || x != x && y != y
	}
	if reflect.TypeOf(a.GetValueType()) != reflect.TypeOf(b.GetValueType()) {
		return false
	}
	switch x := a.ValueType.(type) {
	case *pb.Value_EntityValue:
		y := b.GetEntityValue()
		return proto.Equal(x.EntityValue.GetKey(), y.GetKey()) &&
			maps.EqualFunc(x.EntityValue.GetProperties(), y.GetProperties(), sameValue)
	case *pb.Value_ArrayValue:
		return slices.EqualFunc(x.ArrayValue.GetValues(), b.GetArrayValue().GetValues(), sameValue)
	}
	return collate.Value(a) == collate.Value(b)
}

func isNumber(v *pb.Value) bool {
	switch v.GetValueType().(type) {
	case *pb.Value_IntegerValue, *pb.Value_DoubleValue:
		return true
	}
	return false
}

func float(v *pb.Value) float64 {
	if d, ok := v.ValueType.(*pb.Value_DoubleValue); ok {
		return d.DoubleValue
	}
	return float64(v.GetIntegerValue())
}

// number applies a transform on numbers. It returns the result of the function combine for the
// property's value v and the operand. If v is not a number, it returns the operand.
func number(v, operand *pb.Value, combine func(a, b *pb.Value) *pb.Value) *pb.Value {
	if !isNumber(v) {
		return operand
	}
	return combine(v, operand)
}

// add returns the sum of two numbers. If an integer sum exceeds 64 bits, the result is the greatest
// or least integer. If either is a double, so is the sum. The sum is indexed even if the property
// was not, as in Google's Firestore emulator.
func add(a, b *pb.Value) *pb.Value {
	x, isInteger := a.ValueType.(*pb.Value_IntegerValue)
	y, bothAre := b.ValueType.(*pb.Value_IntegerValue)
	if !isInteger || !bothAre {
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: float(a) + float(b)}}
	}
	sum := x.IntegerValue + y.IntegerValue
	switch {
	case y.IntegerValue > 0 && sum < x.IntegerValue:
		sum = math.MaxInt64
	case y.IntegerValue < 0 && sum > x.IntegerValue:
		sum = math.MinInt64
	}
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: sum}}
}

// extreme returns the greater of two numbers if sign is 1, and the lesser if sign is -1. If they
// are equal, it returns a, the property's present value. If either is NaN, it returns NaN.
func extreme(a, b *pb.Value, sign int) *pb.Value {
	switch x, y := float(a), float(b); {
	case x != x:
		return a
	case y != y:
		return b
	}
	if compareNumbers(b, a)*sign > 0 {
		return b
	}
	return a
}

// compareNumbers compares two numbers by their exact values. It returns -1 if a is less than b, 0
// if they are equal, and 1 if a is greater. It returns 2 if either is not a number.
func compareNumbers(a, b *pb.Value) int {
	x, isInteger := a.ValueType.(*pb.Value_IntegerValue)
	y, otherIs := b.ValueType.(*pb.Value_IntegerValue)
	switch {
	case isInteger && otherIs:
		return cmp.Compare(x.IntegerValue, y.IntegerValue)
	case isInteger:
		return compareMixed(x.IntegerValue, float(b))
	case otherIs && float(a) == float(a):
		return -compareMixed(y.IntegerValue, float(a))
	case float(a) != float(a) || float(b) != float(b):
		return 2
	}
	return cmp.Compare(float(a), float(b))
}

// compareMixed compares an integer with a double, and has the same results as compareNumbers. The
// double may be outside the range of 64-bit integers.
func compareMixed(n int64, d float64) int {
	const end = 1 << 63
	switch {
	case d != d:
		return 2
	case d >= end:
		return -1
	case d < -end:
		return 1
	}
	whole := math.Trunc(d)
	return cmp.Or(cmp.Compare(n, int64(whole)), cmp.Compare(whole, d))
}
