package gql

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
)

// beforeCondition makes a query of a condition, which begins on the next line.
const beforeCondition = "SELECT * WHERE\n"

var inCondition = regexp.MustCompile(`^GQL query, line (\d+), `)

// ParseCondition parses what follows WHERE: balance >= 0 AND plan IN ARRAY('free', 'gold').
func ParseCondition(text string) (*pb.Filter, error) {
	s, err := Parse(&pb.GqlQuery{QueryString: beforeCondition + text, AllowLiterals: true}, nil)
	if err != nil {
		return nil, errors.New(inCondition.ReplaceAllStringFunc(err.Error(), func(where string) string {
			line, _ := strconv.Atoi(inCondition.FindStringSubmatch(where)[1])
			if line <= 2 {
				return ""
			}
			return fmt.Sprintf("line %d, ", line-1)
		}))
	}
	if !proto.Equal(s.Query, &pb.Query{Filter: s.Query.Filter}) {
		return nil, errors.New("there is more than a condition: no ORDER BY, LIMIT or OFFSET")
	}
	return s.Query.Filter, nil
}

// GoValue returns a value as the Go client has it: of an array, a slice.
func GoValue(v *pb.Value) (any, error) {
	switch v := v.GetValueType().(type) {
	case *pb.Value_NullValue:
		return nil, nil
	case *pb.Value_BooleanValue:
		return v.BooleanValue, nil
	case *pb.Value_IntegerValue:
		return v.IntegerValue, nil
	case *pb.Value_DoubleValue:
		return v.DoubleValue, nil
	case *pb.Value_StringValue:
		return v.StringValue, nil
	case *pb.Value_BlobValue:
		return v.BlobValue, nil
	case *pb.Value_TimestampValue:
		return v.TimestampValue.AsTime(), nil
	case *pb.Value_KeyValue:
		return GoKey(v.KeyValue), nil
	case *pb.Value_ArrayValue:
		all := []any{}
		for _, each := range v.ArrayValue.Values {
			value, err := GoValue(each)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	}
	return nil, fmt.Errorf("a condition can't have a value like %v", v)
}

// GoKey returns a key as the Go client has it.
func GoKey(k *pb.Key) (key *datastore.Key) {
	for _, e := range k.GetPath() {
		key = &datastore.Key{Kind: e.Kind, ID: e.GetId(), Name: e.GetName(), Parent: key, Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}
