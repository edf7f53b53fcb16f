package emulator_test

import (
	"strings"
	"testing"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
)

// TestDatastoreMessages checks that errors have the texts of Google's emulators, which share their
// checks with production. Some clients read the texts.
func TestDatastoreMessages(t *testing.T) {
	client, _ := raw(t)
	long := strings.Repeat("x", 1501)
	parse := func(text string) *datastorepb.Mutation {
		m := new(datastorepb.Mutation)
		if err := prototext.Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	inKey := func(key string) string { return "upsert { key { " + key + " } }" }
	named := func(property string) string {
		return `upsert { key { path { kind: "K" id: 1 } } properties { key: "` + property + `" value { } } }`
	}
	for _, c := range [][2]string{
		{inKey(`partition_id { namespace_id: "__x__" } path { kind: "K" name: "a" }`),
			`The namespace id "__x__" is reserved.`},
		{inKey(`partition_id { namespace_id: "a b" } path { kind: "K" name: "a" }`),
			`Illegal string "a b" in namespace id.`},
		{inKey(`path { kind: "` + long + `" name: "a" }`), "The kind is longer than 1500 bytes."},
		{inKey(`path { name: "a" }`), "The kind is the empty string."},
		{inKey(`path { kind: "__K__" name: "a" }`), `The kind "__K__" is reserved.`},
		{inKey(`path { kind: "K" name: "` + long + `" }`), "The key path element name is longer than 1500 bytes."},
		{inKey(`path { kind: "K" name: "" }`), "The key path element name is the empty string."},
		{inKey(`path { kind: "K" name: "__a__" }`), `The key path element name "__a__" is reserved.`},
		{inKey(`path { kind: "K" id: 0 }`), "Key path id is invalid. Must not be zero."},
		{inKey(""), "Key path is empty."},
		{inKey(`path { kind: "K" } path { kind: "L" id: 3 }`),
			"Key path element must not be incomplete: [K: , L: 3]"},
		{`delete { path { kind: "K" name: "a" } path { kind: "L" } }`,
			"Key path element must not be incomplete: [K: a, L: ]"},
		{named(long), "The property.name is longer than 1500 bytes."},
		{named(""), "The property.name is the empty string."},
		{named("__p__"), `The property.name "__p__" is reserved.`},
	} {
		text, want := c[0], c[1]
		_, err := client.Commit(t.Context(), &datastorepb.CommitRequest{ProjectId: "p",
			Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*datastorepb.Mutation{parse(text)}})
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
			t.Errorf("%.100s: %v, want %q", text, err, want)
		}
	}
	filter := func(op string, values int) string {
		return `filter { property_filter { property { name: "n" } op: ` + op + ` value { array_value { ` +
			strings.Repeat(`values { integer_value: 1 } `, values) + `} } } }`
	}
	differs := `filters { property_filter { property { name: "n" } op: NOT_EQUAL value { integer_value: 1 } } } `
	for _, c := range [][2]string{
		{filter("IN", 31), "IN supports up to 30 values. There are 31 values in the IN filter in your query."},
		{filter("IN", 0), "IN requires an non-empty ArrayValue."},
		{filter("NOT_IN", 11), "NOT_IN supports up to 10 values."},
		{"filter { composite_filter { op: AND " + differs + differs + "} }",
			"Only a single 'NOT_EQUAL' or 'NOT_IN' is allowed per query."},
	} {
		text, want := c[0], c[1]
		q := new(datastorepb.Query)
		if err := prototext.Unmarshal([]byte(`kind { name: "K" } `+text), q); err != nil {
			t.Fatal(err)
		}
		_, err := client.RunQuery(t.Context(), &datastorepb.RunQueryRequest{ProjectId: "p",
			QueryType: &datastorepb.RunQueryRequest_Query{Query: q}})
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
			t.Errorf("%.100s: %v, want %q", text, err, want)
		}
	}
	begun, err := client.BeginTransaction(t.Context(), &datastorepb.BeginTransactionRequest{ProjectId: "p",
		TransactionOptions: &datastorepb.TransactionOptions{Mode: &datastorepb.TransactionOptions_ReadOnly_{}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Commit(t.Context(), &datastorepb.CommitRequest{ProjectId: "p",
		Mode:                datastorepb.CommitRequest_TRANSACTIONAL,
		TransactionSelector: &datastorepb.CommitRequest_Transaction{Transaction: begun.Transaction},
		Mutations:           []*datastorepb.Mutation{upsert(pathKey("K", "a"), 1)}})
	const want = "Cannot modify entities in a read-only transaction."
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
		t.Errorf("a write in a read-only transaction: %v, want %q", err, want)
	}
}
