package gql

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbkey"
)

// beforeCondition is a text that turns a condition into a whole query. The condition starts on the
// second line, so the line numbers in errors must be corrected.
const beforeCondition = "SELECT * WHERE\n"

var inCondition = regexp.MustCompile(`^GQL query, line (\d+), `)

// ParseCondition parses a condition as it may follow WHERE in a query, such as: balance >= 0 AND
// plan IN ARRAY('free', 'gold').
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

// GoValue converts a value in a condition to the Go client's form. An array becomes a slice. A key
// with a project or a database is an error, because the client would drop both.
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
		if of := v.KeyValue.GetPartitionId(); of.GetProjectId() != "" || of.GetDatabaseId() != "" {
			return nil, errors.New("a condition can't have a key of another project or database: omit PROJECT and " +
				"DATABASE for a key of the job's own database")
		}
		return pbkey.Of(v.KeyValue), nil
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

// Filters has the operators that a job's filters can have, with their spellings in mapper.Where.
var Filters = map[pb.PropertyFilter_Operator]string{
	pb.PropertyFilter_EQUAL: "=", pb.PropertyFilter_LESS_THAN: "<", pb.PropertyFilter_LESS_THAN_OR_EQUAL: "<=",
	pb.PropertyFilter_GREATER_THAN: ">", pb.PropertyFilter_GREATER_THAN_OR_EQUAL: ">=", pb.PropertyFilter_IN: "in",
}
