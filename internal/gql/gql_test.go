package gql_test

import (
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/internal/gql"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

// partition is the partition of all requests in these tests.
var partition = &pb.PartitionId{ProjectId: "p", NamespaceId: "ns"}

// cursor is a cursor from Google's emulators, of a query for the kind k in this partition.
const cursor = "\n\x19\x12\x13j\x01pr\t\v\x12\x01k\"\x02n1\f\xa2\x01\x02ns\x18\x00 \x00"

// bound has the bindings of the tests, by name: @i, @s, @null, @list, @key, @c. Test cases may also
// use them as @1 and so on.
var bound = map[string]*pb.GqlQueryParameter{
	"i":    parameter("value { integer_value: 5 }"),
	"s":    parameter("value { string_value: 'x' }"),
	"null": parameter("value { null_value: NULL_VALUE }"),
	"list": parameter("value { array_value { values { integer_value: 5 } values { integer_value: 6 } } }"),
	"key": parameter("value { key_value { partition_id { project_id: 'p' namespace_id: 'ns' } path { kind: 'A' id: " +
		"1 } } }"),
	"c":   {ParameterType: &pb.GqlQueryParameter_Cursor{Cursor: []byte(cursor)}},
	"$_1": parameter("value { boolean_value: true }"),
}

func parameter(text string) *pb.GqlQueryParameter {
	parameter := new(pb.GqlQueryParameter)
	if err := prototext.Unmarshal([]byte(text), parameter); err != nil {
		panic(err)
	}
	return parameter
}

// A validCase is a valid query with its expected result.
type validCase struct {
	text string
	want string // the expected Query, in protobuf's text format

	aggregations []string // the expected aggregations, in protobuf's text format
	positional   []string // names in bound of the bindings @1, @2 and so on
	refused      string   // why the Firestore emulator refuses the query nevertheless
}

func (c validCase) request() *pb.GqlQuery { return request(c.text, c.positional) }

func request(text string, positional []string) *pb.GqlQuery {
	q := &pb.GqlQuery{QueryString: text, AllowLiterals: true, NamedBindings: bound}
	for _, name := range positional {
		q.PositionalBindings = append(q.PositionalBindings, bound[name])
	}
	return q
}

// statement returns the expected result of Parse.
func (c validCase) statement(t *testing.T) *gql.Statement {
	t.Helper()
	s := &gql.Statement{Query: new(pb.Query)}
	if err := prototext.Unmarshal([]byte(c.want), s.Query); err != nil {
		t.Fatal(err)
	}
	for _, text := range c.aggregations {
		a := new(pb.AggregationQuery_Aggregation)
		if err := prototext.Unmarshal([]byte(text), a); err != nil {
			t.Fatal(err)
		}
		s.Aggregations = append(s.Aggregations, a)
	}
	return s
}

func TestParse(t *testing.T) {
	for _, cases := range [][]validCase{selections, filters, values, keys, positions, aggregations, lexical} {
		for _, c := range cases {
			t.Run(c.text, func(t *testing.T) {
				got, err := gql.Parse(c.request(), partition)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.statement(t), got, protocmp.Transform()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
	}
}

func TestWithoutPartition(t *testing.T) {
	s, err := gql.Parse(request("SELECT * WHERE __key__ = KEY(A, 1)", nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := s.Query.Filter.GetPropertyFilter().Value.GetKeyValue()
	want := &pb.Key{
		PartitionId: &pb.PartitionId{},
		Path:        []*pb.Key_PathElement{{Kind: "A", IdType: &pb.Key_PathElement_Id{Id: 1}}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestKeyInDatabase(t *testing.T) {
	for text, want := range map[string]*pb.PartitionId{
		"KEY(A, 1)":                 {ProjectId: "p", DatabaseId: "d", NamespaceId: "ns"},
		"KEY(NAMESPACE('n'), A, 1)": {ProjectId: "p", DatabaseId: "d", NamespaceId: "n"},
		"KEY(DATABASE('e'), A, 1)":  {ProjectId: "p", DatabaseId: "e"},
		"KEY(PROJECT('p'), A, 1)":   {ProjectId: "p"},
	} {
		s, err := gql.Parse(request("SELECT * WHERE a = "+text, nil), &pb.PartitionId{ProjectId: "p", DatabaseId: "d",
			NamespaceId: "ns"})
		if err != nil {
			t.Fatal(err)
		}
		got := s.Query.Filter.GetPropertyFilter().Value.GetKeyValue().PartitionId
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
}
