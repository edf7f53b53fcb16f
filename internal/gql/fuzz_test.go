package gql_test

import (
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/gql"
)

// maxDepth is the parser's limit of nested parentheses.
const maxDepth = 100

func TestDepth(t *testing.T) {
	for _, one := range []string{"(", "(a = 1 AND ", "(a = 1 OR b = 2 AND "} {
		nested := func(n int) *pb.GqlQuery {
			return request("SELECT * FROM k WHERE "+strings.Repeat(one, n)+"a = 1"+strings.Repeat(")", n), nil)
		}
		if _, err := gql.Parse(nested(maxDepth), partition); err != nil {
			t.Errorf("%s: %v", one, err)
		}
		for _, n := range []int{maxDepth + 1, 100_000} {
			if _, err := gql.Parse(nested(n), partition); err == nil ||
				!strings.Contains(err.Error(), "parentheses nest deeper than 100") {
				t.Errorf("%s %d times: got %v", one, n, err)
			}
		}
	}
	// Parentheses side by side are not nested.
	text := "SELECT * FROM k WHERE (a = 1)" + strings.Repeat(" AND ((a = 1))", 10_000)
	if _, err := gql.Parse(request(text, nil), partition); err != nil {
		t.Error(err)
	}
	for _, one := range []string{"ARRAY(", "KEY(", "KEY(PROJECT(", "BLOB("} {
		text := "SELECT * FROM k WHERE a = " + strings.Repeat(one, 100_000)
		if _, err := gql.Parse(request(text, nil), partition); err == nil {
			t.Errorf("many %s were accepted", one)
		}
	}
}

// filterDepth returns how deep a filter's composite filters are nested.
func filterDepth(f *pb.Filter) int {
	deepest := 0
	for _, sub := range f.GetCompositeFilter().GetFilters() {
		deepest = max(deepest, 1+filterDepth(sub))
	}
	return deepest
}

// FuzzParse looks for strings on which Parse fails in one of these ways. It panics, nests filters
// too deep, returns a query that can't be sent, or returns different queries for the same string.
func FuzzParse(f *testing.F) {
	for _, cases := range [][]validCase{selections, filters, values, keys, positions, aggregations, lexical} {
		for _, c := range cases {
			f.Add(c.text)
		}
	}
	for _, cases := range [][]invalidCase{
		invalidQueries, invalidPositions, invalidFilters, invalidLiterals, invalidBindings, invalidAggregations,
	} {
		for _, c := range cases {
			f.Add(c.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, positional := range [][]string{nil, {"i"}, {"c", "s"}} {
			s, err := gql.Parse(request(text, positional), partition)
			if err != nil {
				if s != nil || len(err.Error()) > 1000 {
					t.Fatalf("got %v and an error of %d bytes: %.1000s", s, len(err.Error()), err)
				}
				continue
			}
			if d := filterDepth(s.Query.Filter); d > 2*(maxDepth+1) {
				t.Fatalf("composite filters nest %d deep", d)
			}
			wire, err := proto.Marshal(s.Query)
			if err != nil {
				t.Fatal(err)
			}
			back := new(pb.Query)
			if err := proto.Unmarshal(wire, back); err != nil {
				t.Fatal(err)
			}
			again, err := gql.Parse(request(text, positional), partition)
			if err != nil || !proto.Equal(s.Query, again.Query) || !proto.Equal(s.Query, back) {
				t.Fatalf("got %v, then %v, %v, and over the wire %v", s.Query, again, err, back)
			}
		}
	})
}
