package pbvalue_test

import (
	"math"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
)

// TestClone checks that a copy of a random entity has the same encoding, and shares no memory with
// the entity.
func TestClone(t *testing.T) {
	rng := testflag.Rand(t)
	encode := func(e *pb.Entity) string {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	lost := 0
	for range 500 {
		e := anyentity.New(rng, pbvalue.Key(datastore.IDKey("K", 1, nil)), false)
		was, clone := encode(e), pbvalue.Clone(e)
		if encode(clone) != was || !pbvalue.SameEntity(e, clone) || !pbvalue.SameEntity(clone, e) {
			t.Fatalf("a copy of %.3000v is %.3000v", e, clone)
		}
		if merged := proto.CloneOf(e); encode(merged) != was {
			if lost++; pbvalue.SameEntity(e, merged) {
				t.Fatalf("%.3000v is taken for %.3000v", merged, e)
			}
		}
		for _, v := range clone.Properties {
			for _, el := range append(v.GetArrayValue().GetValues(), v) {
				el.ValueType, el.Meaning = &pb.Value_IntegerValue{IntegerValue: 999}, 7
			}
		}
		if encode(e) != was {
			t.Fatalf("a change of the copy changes the entity: %.3000v", e)
		}
	}
	if lost == 0 {
		t.Error("proto.CloneOf keeps -0 in points now, so Clone is not needed")
	}
	if pbvalue.Clone(nil) != nil || pbvalue.CloneValue(nil) != nil {
		t.Error("a copy of nothing is something")
	}
}

// TestSame checks that values which differ in only one bit are not the same.
func TestSame(t *testing.T) {
	minus := math.Copysign(0, -1)
	of := func(v any, noIndex bool) *pb.Value {
		w, err := pbvalue.Of(v, noIndex)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	inside := func(v any) any {
		return []any{&datastore.Entity{Properties: []datastore.Property{{Name: "p", Value: v}}}}
	}
	meant := of("a", false)
	meant.Meaning = 15
	all := []*pb.Value{
		nil, {}, of(nil, false), of(nil, true), of(0.0, false), of(minus, false), of(math.NaN(), false),
		of(int64(0), false),
		of(datastore.GeoPoint{}, false), of(datastore.GeoPoint{Lat: minus}, false),
		of(datastore.GeoPoint{Lng: minus}, false),
		of(datastore.GeoPoint{}, true), of("a", false), of("a", true), meant, of([]any{}, false), of([]any{nil}, false),
		of(inside(datastore.GeoPoint{}), false), of(inside(datastore.GeoPoint{Lat: minus}), false),
		of(inside(0.0), false),
		of(inside(minus), false), of(&datastore.Entity{}, false),
		of(&datastore.Entity{Key: datastore.IDKey("K", 1, nil)}, false),
	}
	for i, a := range all {
		for j, b := range all {
			if got := pbvalue.Same(a, b); got != (i == j) {
				t.Errorf("%v and %v are the same: %v", a, b, got)
			}
			if got := pbvalue.Same(a, pbvalue.CloneValue(b)); got != (i == j) {
				t.Errorf("%v and a copy of %v are the same: %v", a, b, got)
			}
		}
	}
}
