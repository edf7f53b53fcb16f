// Package entity keeps entities in their wire form, and has what masks and
// transforms make of them.
package entity

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Array makes a value of values.
func Array(elements []*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: elements}}}
}

// Text makes a value of a string.
func Text(s string) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}}
}

// Integer makes a value of an integer.
func Integer(n int64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
}

// Time makes a time of the microseconds in which versions are numbered.
func Time(micros int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: micros / 1e6, Nanos: int32(micros % 1e6 * 1e3)}
}
