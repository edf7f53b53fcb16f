package property

import (
	"slices"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
)

// merged returns the entity to store by [Original.Changes], and the names of changed properties.
func merged[T any](o *Original[T], v *T, resaves bool) (*pb.Entity, []string, error) {
	edit, err := o.Changes(v, resaves)
	return edit.Whole(), edit.Changed, err
}

// TestEdit checks what an edit sends, with and without a mask, and that it does not change what is
// stored.
func TestEdit(t *testing.T) {
	number := func(n int64) *pb.Value { return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}} }
	key := &pb.Key{Path: []*pb.Key_PathElement{{Kind: "K"}}}
	entity := func(values map[string]*pb.Value) *pb.Entity { return &pb.Entity{Key: key, Properties: values} }
	type values = map[string]*pb.Value
	for _, c := range []struct {
		stored, edit, whole, parts values
		changed                    []string
	}{
		{values{"A": number(1)}, nil, values{"A": number(1)}, nil, nil},
		{nil, values{"A": number(1)}, values{"A": number(1)}, values{"A": number(1)}, []string{"A"}},
		{values{"A": number(1), "B": number(2), "C": number(3)}, values{"C": number(4), "A": nil, "D": number(5)},
			values{"B": number(2), "C": number(4), "D": number(5)}, values{"C": number(4), "D": number(5)},
			[]string{"A", "C", "D"}},
	} {
		stored := entity(c.stored)
		before := proto.CloneOf(stored)
		e := NewEdit(stored, c.edit)
		if whole, parts := e.Whole(), e.Parts(); !proto.Equal(whole, entity(c.whole)) ||
			!proto.Equal(parts, entity(c.parts)) || !slices.Equal(e.Changed, c.changed) {
			t.Errorf("%v: %v, parts %v, changed %q", c.edit, whole, parts, e.Changed)
		}
		if !proto.Equal(stored, before) {
			t.Errorf("%v has changed the stored entity %v to %v", c.edit, before, stored)
		}
		if again := e.Whole(); !proto.Equal(again, entity(c.whole)) {
			t.Errorf("%v: after Parts, the whole is %v", c.edit, again)
		}
	}
}
