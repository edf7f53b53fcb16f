package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// id returns a key of the kind K.
func id(n int64) *datastore.Key { return datastore.IDKey("K", n, nil) }

// inSpace returns a key in a namespace.
func inSpace(namespace, kind string) *datastore.Key {
	k := datastore.IDKey(kind, 1, nil)
	k.Namespace = namespace
	return k
}

// TestNormal checks that queries which a job can't process are refused with a reason.
func TestNormal(t *testing.T) {
	some := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint("k", i))
		}
		return all
	}
	ten := func(p string) Filter { return where(p, "in", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) }
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		q       Query
		updates bool
		want    string // a part of the error; empty: no error
	}{
		{"a kind", Query{Kind: "K"}, true, ""},
		{"a snapshot for a visit", Query{Kind: "K", ReadTime: noon}, false, ""},
		{"a snapshot for an update", Query{Kind: "K", ReadTime: noon}, true, "is for a Visit"},
		{"a snapshot of all namespaces", Query{Kind: "K", ReadTime: noon, AllNamespaces: true}, false, "name the"},
		{"keys of values", Query{Kind: "K", KeysOnly: true, ShardBy: "a"}, false, "read the entities to see whether"},
		{"no kind", Query{}, true, "Query.Kind is empty"},
		{"a reserved kind", Query{Kind: "__K__"}, true, "reserved"},
		{"a kind and kinds", Query{Kind: "K", Kinds: []string{"L"}}, true, "set one of them"},
		{"a reserved kind of several", Query{Kinds: []string{"K", "__K__"}}, true, "Query.Kinds: a kind"},
		{"as many kinds as may be", Query{Kinds: some(maxKinds)}, true, ""},
		{"too many kinds", Query{Kinds: some(maxKinds + 1)}, true, "above the maximum"},
		{"too many namespaces", Query{Kind: "K", Namespaces: some(maxNamespaces + 1)}, true, "above the maximum"},
		{"a namespace and all", Query{Kind: "K", Namespace: "n", AllNamespaces: true}, true, "set only one of"},
		{"a namespace and some", Query{Kind: "K", Namespace: "n", Namespaces: []string{"m"}}, true, "set only one of"},
		{"a namespace with a space", Query{Kind: "K", Namespace: "a b"}, true, "up to 100 letters"},
		{"a reserved namespace", Query{Kind: "K", Namespaces: []string{"a", "__n__"}}, true, "reserved"},
		{"a range of several kinds", Query{Kinds: []string{"K", "L"}, Start: id(1)}, true, "several kinds or"},
		{"an ancestor of several namespaces", Query{Kind: "K", AllNamespaces: true, Ancestor: inSpace("n", "P")}, true,
			"is in one namespace"},
		{"an ancestor of another namespace", Query{Kind: "K", Namespace: "m", Ancestor: inSpace("n", "P")}, true,
			"is in the namespace \"n\""},
		{"an incomplete ancestor", Query{Kind: "K", Ancestor: datastore.IncompleteKey("P", nil)}, true, "incomplete"},
		{"an incomplete start", Query{Kind: "K", Start: datastore.IncompleteKey("K", nil)}, true, "Query.Start"},
		{"the end of another kind", Query{Kind: "K", End: inSpace("", "L")}, true, "want the query's"},
		{"the start of another namespace", Query{Kind: "K", Start: inSpace("n", "K")}, true, "want the query's"},
		{"keys and values", Query{Kind: "K", Start: id(1), ShardBy: "a"}, true, "bound this property by Query.Filters"},
		{"a range", Query{Kind: "K", Start: id(1), End: id(2)}, true, ""},
		{"an empty range", Query{Kind: "K", Start: id(2), End: id(2)}, true, "is not before"},
		{"a bad filter", Query{Kind: "K", Filters: []Filter{where("a", "!=", 1)}}, true, "filter in the function"},
		{"as many combinations as may be",
			Query{Kind: "K", Filters: []Filter{ten("a"), where("b", "in", []int{1, 2, 3})}},
			true, ""},
		{"too many combinations", Query{Kind: "K", Filters: []Filter{ten("a"), where("b", "in", []int{1, 2, 3, 4})}},
			true, "40 combinations"},
		{"one value to shard by", Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("a", "=", 1)}}, true,
			"shard by keys"},
		{"shard by keys", Query{Kind: "K", ShardBy: "__key__"}, true, "reserved"},
		{"shard by a long name", Query{Kind: "K", ShardBy: strings.Repeat("x", 1501)}, true, "longer than"},
		{"values between which are none", Query{Kind: "K", ShardBy: "a",
			Filters: []Filter{where("a", ">", 5), where("a", "<=", 5)}}, true, "leave no values"},
		{"one value is left", Query{Kind: "K", ShardBy: "a", Filters: []Filter{where("a", ">=", 5),
			where("a", "<=", 5)}}, true, ""},
		{"two shares", Query{Kind: "K", Share: Share{0, 1, 2}, Filters: []Filter{Share{1, 2, 2}.Filter()}}, true,
			"two shares"},
		{"a share that is none", Query{Kind: "K", Filters: []Filter{where("__key__", "share", "half")}}, true,
			"is not like"},
	} {
		_, err := c.q.Normal(c.updates)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestNormalIs checks that equivalent queries have the same normal form.
func TestNormalIs(t *testing.T) {
	by := []Filter{where("a", ">", 5)}
	for _, c := range []struct {
		name    string
		q       Query
		updates bool
		is      func(q Query) bool
	}{
		{"one of several kinds is the kind", Query{Kinds: []string{"K", "K"}}, true,
			func(q Query) bool { return q.Kind == "K" && q.Kinds == nil && !q.Many() && q.Plain() }},
		{"kinds are sorted", Query{Kinds: []string{"L", "K", "L"}}, true,
			func(q Query) bool { return slices.Equal(q.AllKinds(), []string{"K", "L"}) && q.Many() && !q.Plain() }},
		{"one of several namespaces is the namespace", Query{Kind: "K", Namespaces: []string{"n", "n"}}, true,
			func(q Query) bool { return q.Space() == keyspace.Space{Namespace: "n", Kind: "K"} && !q.Many() }},
		{"the namespace is the ancestor's", Query{Kind: "K", Ancestor: inSpace("n", "P")}, true,
			func(q Query) bool { return q.Namespace == "n" && !q.Whole() }},
		{"a time is UTC, and of microseconds",
			Query{Kind: "K", ReadTime: time.Date(2026, 11, 1, 13, 0, 0, 1999, time.FixedZone("", 3600))}, false,
			func(q Query) bool { return q.ReadTime.Equal(time.Date(2026, 11, 1, 12, 0, 0, 1000, time.UTC)) }},
		{"an update of keys goes by the values of its inequality", Query{Kind: "K", KeysOnly: true, Filters: by}, true,
			func(q Query) bool { return q.ShardBy == "a" && !q.Unread(true) }},
		{"any other goes by keys, and says how it could do without an index", Query{Kind: "K", Filters: by}, true,
			func(q Query) bool { return q.ShardBy == "" && strings.Contains(fmt.Sprint(q.WithoutIndex()), `"a"`) }},
		{"one that also has an equality says nothing of it",
			Query{Kind: "K", Filters: append(by, where("b", "=", 1))}, true,
			func(q Query) bool { return q.WithoutIndex() == nil }},
		{"a share is apart", Query{Kind: "K", Filters: append(by, Share{1, 2, 4}.Filter())}, true,
			func(q Query) bool { return q.Share == Share{1, 2, 4} && len(q.Filters) == 1 && len(q.WithShare()) == 2 }},
		{"a visit of keys reads no entities", Query{Kind: "K", KeysOnly: true, Filters: by}, false,
			func(q Query) bool { return q.Unread(false) && !(Query{Kind: "K"}).Unread(false) }},
	} {
		q, err := c.q.Normal(c.updates)
		if err != nil || !c.is(q) {
			t.Errorf("%s: %+v, %v", c.name, q, err)
		}
	}
}

// TestForeign checks that a query over the kinds of scattermap's own records is refused in the
// default namespace.
func TestForeign(t *testing.T) {
	for _, c := range []struct {
		q    Query
		ours bool
	}{
		{Query{Kind: "K"}, false}, {Query{Kind: record.JobKind}, true}, {Query{Kinds: []string{"K", record.JobKind}},
			true},
		{Query{Kind: record.JobKind, Namespace: "n"}, false},
		{Query{Kind: record.JobKind, Namespaces: []string{"n", "m"}}, false},
		{Query{Kind: record.JobKind, Namespaces: []string{"", "m"}}, true},
		{Query{Kind: record.JobKind, AllNamespaces: true}, true},
	} {
		if err := c.q.Foreign(); (err != nil) != c.ours {
			t.Errorf("%+v: %v", c.q, err)
		}
	}
}

// TestOf checks that a build refuses a job with settings that it does not know.
func TestOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		job   record.Job
		newer bool
	}{
		{"all is known", record.Job{Query: []byte(`{"kind":"K","shard_by":"a"}`), Times: true}, false},
		{"a field is not", record.Job{Query: []byte(`{"kind":"K","newer":1}`)}, true},
		{"it needs something", record.Job{Query: []byte(`{"kind":"K"}`), Needs: []string{"more"}}, true},
		{"it is no query", record.Job{Query: []byte(`[`)}, true},
		{"its share is none", record.Job{Query: []byte(
			`{"kind":"K","filters":[{"property":"__key__","op":"share","value":"0-9/4"}]}`)}, true},
	} {
		q, err := Of(&c.job)
		if errors.Is(err, ErrNewer) != c.newer || err == nil && (q.Kind != "K" || !q.Times) {
			t.Errorf("%s: %+v, %v", c.name, q, err)
		}
	}
}

// TestPosition checks the position of an entity: it has the entity's only value inside the query's
// bounds.
func TestPosition(t *testing.T) {
	between := []Filter{where("a", ">=", int64(10)), where("a", "<", int64(20))}
	for _, c := range []struct {
		name string
		q    Query
		a    any
		want string // "no position" means that there is no position
		many bool
	}{
		{"by keys", Query{Kind: "K"}, int64(1), "/K,1", false},
		{"by keys, and it does not match", Query{Kind: "K", Filters: between}, int64(1), "no position", false},
		{"by its value", Query{Kind: "K", ShardBy: "a"}, int64(7), "7 of /K,1", false},
		{"the value is outside", Query{Kind: "K", ShardBy: "a", Filters: between}, int64(20), "no position", false},
		{"several values, of which one counts: the least one", Query{Kind: "K", ShardBy: "a", Filters: between},
			[]any{int64(15), int64(5), int64(12)}, "12 of /K,1", true},
		{"no value", Query{Kind: "K", ShardBy: "a"}, []any{}, "no position", false},
	} {
		at, err := c.q.Position(id(1), entity(t, "a", c.a))
		if at.String() != c.want || errors.Is(err, errSharded) != c.many || c.many && !fault.IsPermanent(err) {
			t.Errorf("%s: %v, %v", c.name, at, err)
		}
	}
}

// TestKeeps checks that there is an error if a function moves an entity to another place in the
// query's order.
func TestKeeps(t *testing.T) {
	inner := func(n int64) *datastore.Entity {
		return &datastore.Entity{Properties: []datastore.Property{{Name: "b", Value: n}}}
	}
	for _, c := range []struct {
		name    string
		by      string
		changed []string
		before  []any
		after   []any
		moved   bool
	}{
		{"by keys", "", []string{"a"}, []any{"a", int64(1)}, []any{"a", int64(2)}, false},
		{"another property", "a", []string{"c"}, []any{"a", int64(1), "c", int64(1)}, []any{"c", int64(2)}, false},
		{"the property", "a", []string{"a"}, []any{"a", int64(1)}, []any{"a", int64(2)}, true},
		{"the property is written as it was", "a", []string{"a"}, []any{"a", int64(1)}, []any{"a", int64(1)}, false},
		{"the property is removed", "a", []string{"a"}, []any{"a", int64(1)}, nil, true},
		{"an entity that the property is in", "a.b", []string{"a"}, []any{"a", inner(1)}, []any{"a", inner(2)}, true},
		{"that entity, and not the property", "a.b", []string{"a"}, []any{"a", inner(1)}, []any{"a", inner(1)}, false},
	} {
		err := Query{Kind: "K", ShardBy: c.by}.Keeps(entity(t, c.before...), c.changed, entity(t, c.after...))
		if errors.Is(err, errSharded) != c.moved {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
