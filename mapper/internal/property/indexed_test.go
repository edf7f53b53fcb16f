package property

import (
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestIndexed checks arrays whose elements have different index flags, and names with dots.
func TestIndexed(t *testing.T) {
	text := func(s string, unindexed bool) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}, ExcludeFromIndexes: unindexed}
	}
	list := func(all ...*pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: all}}}
	}
	inner := func(unindexed bool, v *pb.Value) *pb.Value {
		e := &pb.Entity{Properties: map[string]*pb.Value{"b": v, "c.d": text("deep", false)}}
		return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: e}, ExcludeFromIndexes: unindexed}
	}
	e := &pb.Entity{Properties: map[string]*pb.Value{
		"tags": list(text("long", true), text("i", false)),
		"a":    list(inner(false, text("in", false)), inner(true, text("out", false))),
		"a.b":  text("flat", false), "none": text("x", true),
	}}
	for name, want := range map[string][]any{
		"tags": {"i"}, "a.b": {"flat", "in"}, "a.c.d": {"deep"}, "none": nil, "a": nil, "missing": nil,
	} {
		if diff := cmp.Diff(want, Indexed(e, name), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
