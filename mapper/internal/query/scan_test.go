package query

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// at returns a position of the kind K with a value. If n is not 0, the position also has a key with
// the ID n.
func at(v any, n int64) *keyspace.Position {
	p := &keyspace.Position{Kind: "K", Valued: true, Value: v}
	if n != 0 {
		p.Key = id(n)
	}
	return p
}

// TestScans checks that a range gets only as many scans as its ends need. In the expected texts, a
// scan of a single value is written as this value, and a scan of several values as "...".
func TestScans(t *testing.T) {
	byKey, byValue := Query{Kind: "K"}, Query{Kind: "K", ShardBy: "a"}
	bounded := Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("a", ">=", int64(10)),
		where("a", "<", int64(20))}}
	for _, c := range []struct {
		name       string
		q          Query
		start, end *keyspace.Position
		want       string
	}{
		{"keys", byKey, keyspace.At(id(1)), keyspace.At(id(9)), "[...]"},
		{"no keys", byKey, keyspace.At(id(9)), keyspace.At(id(9)), "[]"},
		{"keys outside the query", Query{Kind: "K", Start: id(10)}, keyspace.At(id(1)), keyspace.At(id(9)), "[]"},
		{"the ends are in other kinds", byKey, &keyspace.Position{Kind: "A"}, &keyspace.Position{Kind: "Z"}, "[...]"},
		{"all values", byValue, nil, nil, "[...]"},
		{"from a value", byValue, at(int64(1), 0), nil, "[...]"},
		{"from a key of a value", byValue, at(int64(1), 5), nil, "[1 ...]"},
		{"up to a key of a value", byValue, nil, at(int64(2), 5), "[... 2]"},
		{"from a key of one to a key of another", byValue, at(int64(1), 5), at(int64(2), 5), "[1 ... 2]"},
		{"keys of one value", byValue, at(int64(1), 5), at(int64(1), 9), "[1]"},
		{"before the query's values", bounded, at(int64(1), 5), at(int64(2), 5), "[]"},
		{"from before the query's values", bounded, at(int64(1), 5), at(int64(15), 5), "[... 15]"},
		{"to behind the query's values", bounded, at(int64(15), 5), at(int64(25), 5), "[15 ...]"},
	} {
		var got []string
		for _, s := range c.q.Scans(c.start, c.end) {
			if s.Property != c.q.ShardBy || s.Query == nil || s.Reading(true) != s.Query ||
				s.Reading(false) == s.Query {
				t.Errorf("%s: %+v", c.name, s)
			}
			text := "..."
			if s.Fixed {
				text = fmt.Sprint(s.Value)
			}
			got = append(got, text)
		}
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

// TestBounds checks the bounds of queries with several filters: the narrowest one counts. If a
// filter excludes its own value, the next value must be the bound.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		q    Query
		want string
	}{
		{"none", Query{Kind: "K", ShardBy: "a"}, "from the start to the end"},
		{"keys", Query{Kind: "K", Start: id(1), End: id(2)}, "from /K,1 to /K,2"},
		{"another property", Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("b", ">", int64(1))}},
			"from the start to the end"},
		{"by keys", Query{Kind: "K", Filters: []Filter{where("b", ">", int64(1))}}, "from the start to the end"},
		{"several", Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("a", ">=", int64(1)),
			where("a", ">", int64(5)),
			where("a", "<", int64(9)), where("a", "<=", int64(7))}}, "from 6 of /K to 8 of /K"},
	} {
		low, high := c.q.Bounds()
		if got := keyspace.FromTo(low, high); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestBetween cuts a query into two parts, at a key or at a value.
func TestBetween(t *testing.T) {
	for _, c := range []struct {
		name string
		q    Query
		at   *keyspace.Position
		want string // low and high of the first part, then of the second
	}{
		{"at a key", Query{Kind: "K", End: id(9)}, keyspace.At(id(5)), "from the start to /K,5, from /K,5 to /K,9"},
		{"at a value", Query{Kind: "K", ShardBy: "a"}, at(int64(5), 0),
			"from the start to 5 of /K, from 5 of /K to the end"},
	} {
		var parts []string
		for _, ends := range [][2]*keyspace.Position{{nil, c.at}, {c.at, nil}} {
			q := c.q.Between(ends[0], ends[1])
			if !c.q.Bounding(c.at) {
				t.Errorf("%s: %v bounds nothing", c.name, c.at)
			}
			if ends[1] == nil && q.End == nil {
				q.End = c.q.End
			}
			low, high := q.Bounds()
			parts = append(parts, keyspace.FromTo(low, high))
		}
		if got := strings.Join(parts, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	long := at(strings.Repeat("x", keyspace.MaxName+1), 0)
	if (Query{Kind: "K", ShardBy: "a"}).Bounding(long) {
		t.Error("a value bounds a query that no filter can have")
	}
}

// TestDatastore checks that Datastore returns an error if no Datastore query selects the same
// entities.
func TestDatastore(t *testing.T) {
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{Kind: "K", Start: id(1), KeysOnly: true}, ""},
		{Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("a", ">", 1), where("b", "=", 1)}}, ""},
		{Query{Kinds: []string{"K", "L"}}, "several kinds or namespaces"},
		{Query{Kind: "K", AllNamespaces: true}, "several kinds or namespaces"},
		{Query{Kind: "K", Share: Share{0, 1, 2}}, "a share of the keys"},
		{Query{}, "is empty"},
	} {
		d, err := c.q.Datastore()
		if (err == nil) != (c.want == "") || (d == nil) != (err != nil) || err != nil && !strings.Contains(err.Error(),
			c.want) {
			t.Errorf("%+v: %v, want %q", c.q, err, c.want)
		}
	}
}
