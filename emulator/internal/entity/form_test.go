package entity

import (
	"bytes"
	"math/rand/v2"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestSplice compares Splice on wire forms with Mask on decoded entities, for random property
// masks.
func TestSplice(t *testing.T) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	values := func() map[string]*pb.Value {
		properties := make(map[string]*pb.Value)
		for _, name := range []string{"a", "aa", "b", "ä", "z", "Z", "none"} {
			switch rng.IntN(5) {
			case 0:
				properties[name] = Integer(rng.Int64N(1000))
			case 1:
				properties[name] =
					Array([]*pb.Value{Text("x"),
						{ExcludeFromIndexes: true, ValueType: &pb.Value_StringValue{StringValue: "y"}}})
			case 2:
				properties[name] =
					&pb.Value{ValueType: &pb.Value_EntityValue{
						EntityValue: &pb.Entity{Properties: map[string]*pb.Value{"in": Integer(1),
							"side": Text(name)}}}}
			}
		}
		return properties
	}
	for range 2000 {
		empty, err :=
			New(&pb.Key{Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Name{Name: "k"}}}})
		if err != nil {
			t.Fatal(err)
		}
		before, after := values(), values()
		f, err := empty.With(before)
		if err != nil {
			t.Fatal(err)
		}
		paths := []string{"z", "a", "ä", "none", "Z", "z", "more"}[:rng.IntN(8)]
		names, ok := TopLevel(&pb.PropertyMask{Paths: paths})
		if !ok {
			t.Fatalf("%q are no names", paths)
		}
		got, err := f.Splice(names, after)
		if err != nil {
			t.Fatal(err)
		}
		masked, err := Mask(before, after, paths)
		if err != nil {
			t.Fatal(err)
		}
		want, err := empty.With(masked)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.wire, want.wire) || got.indexed != want.indexed || got.keyLen != want.keyLen {
			t.Fatalf("%q of %v in %v: %v, %d indexed, want %d", paths, after, before, got.Properties(), got.indexed,
				want.indexed)
		}
	}
	for _, path := range []string{"", "a.b", `a\.b`, "__key__"} {
		if _, ok := TopLevel(&pb.PropertyMask{Paths: []string{"a", path}}); ok {
			t.Errorf("%q is a name", path)
		}
	}
	if _, ok := TopLevel(nil); ok {
		t.Error("no mask has names")
	}
}
