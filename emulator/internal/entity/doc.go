// Package entity stores entities in their wire form (encoded protocol buffers). It applies property
// masks and property transforms to them.
package entity

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Array returns an array value with the given elements.
func Array(elements []*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: elements}}}
}

// Text returns a string value.
func Text(s string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}}
}

// Integer returns an integer value.
func Integer(n int64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
}

// Time converts a time in microseconds since 1970 into a timestamp. Versions of entities are such
// times.
func Time(micros int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: micros / 1e6, Nanos: int32(micros % 1e6 * 1e3)}
}
