package conformance

import (
	"fmt"
	"math"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// letters puts the entities that most query cases use: one kind, with values of all types.
func letters(e *env) {
	e.Helper()
	_, err := e.commit(
		upsert(e.name("P", "a"), props("n", 1, "s", "x", "m", []any{1, 2})),
		upsert(e.name("P", "b"), props("n", 2, "s", "y", "m", []any{2, 3})),
		upsert(e.name("P", "c"), props("n", 3, "s", "x", "m", []any{3})),
		upsert(e.name("P", "d"), props("n", "str", "s", "z")),
		upsert(e.name("P", "e"), props("n", nil, "s", nil)),
		upsert(e.name("P", "f"), props("s", "w", "hidden", unindexed(1))),
		upsert(e.name("P", "g"), props("n", 2.5, "s", "x", "hidden", 1)),
		upsert(e.name("P", "h"), props("n", math.NaN(), "s", "y", "m", 5)),
		upsert(e.name("P", "i"), props("n", 2, "s", "x", "m", []any{9, "t"}, "home",
			value(props("town", "Bath", "rooms", []any{1, 2})))),
	)
	e.must(err)
}

var all = datastore.NewQuery("P")

// ask returns a test case that runs a keys-only query over the entities of letters.
func ask(q *datastore.Query) func(*env) string {
	return func(e *env) string { letters(e); return e.keys(q) }
}

func or(filters ...datastore.EntityFilter) *datastore.Query {
	return all.FilterEntity(datastore.OrFilter{Filters: filters})
}

func where(property, op string, v any) datastore.PropertyFilter {
	return datastore.PropertyFilter{FieldName: property, Operator: op, Value: v}
}

// Reasons for differences that several cases have.
const (
	older   = "the classic emulator is older than this feature"
	repeats = "the Firestore emulator returns an entity once for each value of an array that it sorts by; " +
		"production returns it once"
	oneProperty = "the classic emulator has inequalities on one property only"
	descTies    = "the Firestore emulator sorts equal values of a descending order by descending keys"
)

// family returns a test case that puts an entity with descendants, all of the kind of letters, and
// runs a query for them.
func family(q func(root *datastore.Key) *datastore.Query) func(*env) string {
	return func(e *env) string {
		root := datastore.NameKey("P", "a", nil)
		for _, k := range []*datastore.Key{root, datastore.NameKey("P", "b", root), datastore.IDKey("P", 7, root),
			datastore.NameKey("P", "b", nil)} {
			_, err := e.client.Put(e.Context(), k, &struct{ S, T string }{"x", k.Name})
			e.must(err)
		}
		asked := q(root)
		count, err := e.client.Count(e.Context(), asked)
		e.must(err)
		return fmt.Sprintf("%s: %d", e.keys(asked), count)
	}
}

func refusedBy(code string) *difference { return &difference{code, older} }

var queryCases = []conformanceCase{
	{name: "ancestor, downwards", doc: "an ancestor query has the ancestor itself",
		run: family(func(root *datastore.Key) *datastore.Query {
			return all.Ancestor(root).Order("-__key__")
		}), want: "b 7 a: 3"},
	{name: "equality and ancestor, downwards", doc: "an ancestor query has the ancestor itself",
		run: family(func(root *datastore.Key) *datastore.Query {
			return all.Ancestor(root).FilterField("S", "=", "x").Order("-__key__")
		}), want: "b 7 a: 3"},
	{name: "equality, ancestor and keys, downwards", doc: "the range ends above its lower end",
		run: family(func(root *datastore.Key) *datastore.Query {
			return all.Ancestor(root).FilterField("S", "=", "x").FilterField("__key__", ">=",
				root).FilterField("__key__",
				"<", datastore.NameKey("P", "b", root)).Order("-__key__")
		}), want: "7 a: 2"},
	{name: "kind", doc: "a query without filters returns the kind by key", run: ask(all), want: "a b c d e f g h i"},
	{name: "equality", doc: "entities with that value", run: ask(all.FilterField("s", "=", "x")), want: "a c g i"},
	{name: "equality with null", doc: "null is a value like others", run: ask(all.FilterField("n", "=", nil)),
		want: "e"},
	{name: "equality with NaN", doc: "NaN equals itself in filters", run: ask(all.FilterField("n", "=", math.NaN())),
		want: "h"},
	{name: "equality in an array", doc: "one of the values suffices", run: ask(all.FilterField("m", "=", 2)),
		want: "a b"},
	{name: "equality and inequality on an array",
		doc: "both have to hold for one value: the documentation is silent, and this is what Firestore does",
		run: ask(all.FilterField("m", "=", 2).FilterField("m", ">=", 3)), want: "",
		classic: &difference{"b", "the classic emulator has each hold for another value"}},
	{name: "equalities and inequality on an array",
		doc: "the inequality has to hold for one of the equal values: the documentation is silent",
		run: ask(all.FilterField("m", "=", 2).FilterField("m", "=", 3).FilterField("m", ">=", 3)), want: "b",
		firestore: &difference{"", "the Firestore emulator has it hold for the least of them"}},
	{name: "equality and inequality on an array, by key",
		doc: "both have to hold for one value: the documentation is silent, and this is what Firestore does",
		run: ask(all.FilterField("m", "=", 2).FilterField("m", ">=", 3).Order("__key__")), want: "",
		classic: &difference{"InvalidArgument", oneProperty}},
	{name: "equality and inequality on a value", doc: "both have to hold",
		run: ask(all.FilterField("n", "=", 2).FilterField("n", ">", 2)), want: ""},
	{name: "two equalities on an array", doc: "each may hold for another value",
		run: ask(all.FilterField("m", "=", 2).FilterField("m", "=", 3)), want: "b"},
	{name: "inequalities on an array", doc: "one value has to satisfy all inequalities",
		run: ask(all.FilterField("m", ">", 1).FilterField("m", "<", 3)), want: "a b"},
	{name: "contradictory inequalities on an array", doc: "no single value satisfies both",
		run: ask(all.FilterField("m", ">", 2).FilterField("m", "<", 2)), want: ""},
	{name: "greater than", doc: "values of other types that sort behind are greater",
		run: ask(all.FilterField("n", ">", 1)), want: "b i c d g h"},
	{name: "less than", doc: "values of other types that sort before are less",
		run: ask(all.FilterField("n", "<", 2.5)), want: "e a b i c d"},
	{name: "not equal", doc: "NOT_EQUAL holds for every other value, and orders by the property",
		run: ask(all.FilterField("n", "!=", 2)), want: "e a c d g h", classic: refusedBy("Unknown")},
	{name: "not equal in an array", doc: "NOT_EQUAL is a test for a value other than this one",
		run: ask(all.FilterField("m", "!=", 2)), want: "a b c h i", classic: refusedBy("Unknown"),
		firestore: &difference{"a b c h i i", repeats}},
	{name: "not equal to null", doc: "everything but null", run: ask(all.FilterField("n", "!=", nil)),
		want: "a b i c d g h", classic: refusedBy("Unknown")},
	{name: "not in", doc: "NOT_IN holds for values that are not listed",
		run: ask(all.FilterField("n", "not-in", []any{1, 2})), want: "e c d g h",
		classic: refusedBy("InvalidArgument")},
	{name: "not in more than ten", doc: "NOT_IN has at most 10 values",
		run: ask(all.FilterField("n", "not-in", []any{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})), want: "InvalidArgument"},
	{name: "not in beside or", doc: "NOT_IN excludes OR, IN and NOT_EQUAL from the query",
		run:  ask(all.FilterField("n", "not-in", []any{1}).FilterField("s", "in", []any{"x", "y"})),
		want: "InvalidArgument"},
	{name: "not equal twice", doc: "a query has one NOT_EQUAL",
		run: ask(all.FilterField("n", "!=", 1).FilterField("s", "!=", "x")), want: "InvalidArgument"},
	{name: "in", doc: "IN holds for the listed values; results come by key",
		run: ask(all.FilterField("n", "in", []any{1, 3, 2})), want: "a b c i", classic: refusedBy("InvalidArgument")},
	{name: "in of nothing", doc: "IN needs an array that is not empty", run: ask(all.FilterField("n", "in", []any{})),
		want: "InvalidArgument"},
	{name: "in on an array", doc: "an entity that satisfies several disjunctions is returned once",
		run: ask(all.FilterField("m", "in", []any{3, 2})), want: "a b c", classic: refusedBy("InvalidArgument")},
	{name: "in with order", doc: "an array sorts by its least value that is listed",
		run: ask(all.FilterField("m", "in", []any{3, 2}).Order("m")), want: "a b c",
		classic: refusedBy("InvalidArgument"), firestore: &difference{"a a b b c", repeats}},
	{name: "thirty disjunctions", doc: "a filter may come to 30 disjunctions",
		run: ask(all.FilterField("n", "in", upTo(30))), want: "a b c i", classic: refusedBy("InvalidArgument")},
	{name: "thirty-one disjunctions", doc: "and to no more", run: ask(all.FilterField("n", "in", upTo(31))),
		want: "InvalidArgument"},
	{name: "or", doc: "one of the filters suffices", run: ask(or(where("s", "=", "w"), where("n", "=", 2))),
		want: "b f i", classic: refusedBy("InvalidArgument")},
	{name: "or of inequality and equality",
		doc: "an inequality orders by its property, and entities without it are no results",
		run: ask(or(where("n", ">", 2), where("s", "=", "w"))), want: "c d g h", classic: refusedBy("InvalidArgument")},
	{name: "or within and", doc: "filters nest",
		run: ask(or(where("n", "=", 1), where("n", "=", 2)).FilterField("s", "=", "x")), want: "a i",
		classic: refusedBy("InvalidArgument")},
	{name: "or with order", doc: "an order leaves out entities without the property",
		run: ask(or(where("n", "=", 1), where("s", "=", "w")).Order("n")), want: "a",
		classic: refusedBy("InvalidArgument")},
	{name: "inequalities on two properties", doc: "results are ordered by the properties of inequalities",
		run: ask(all.FilterField("s", ">=", "x").FilterField("n", ">=", 1)), want: "a i b c d g h",
		classic: &difference{"InvalidArgument", oneProperty}},
	{name: "inequalities on two properties, ordered", doc: "an explicit order comes first",
		run: ask(all.FilterField("s", ">=", "x").FilterField("n", ">=", 1).Order("-n")), want: "h g d c b i a",
		classic: &difference{"InvalidArgument", oneProperty}},
	{name: "inequality on a property, order by another", doc: "the first order need not be the inequality's",
		run: ask(all.FilterField("s", ">=", "x").Order("n")), want: "a i b c d g h",
		classic: &difference{"InvalidArgument", oneProperty},
	},
	{name: "order", doc: "null, integers, strings, doubles; equal values by key", run: ask(all.Order("n")),
		want: "e a b i c d g h"},
	{name: "descending order", doc: "the other way round", run: ask(all.Order("-n").Order("__key__")),
		want: "h g d c b i a e"},
	{name: "descending order with ties", doc: "equal values come by key", run: ask(all.Order("-n")),
		want: "h g d c b i a e", firestore: &difference{"h g d c i b a e", descTies}},
	{name: "order by an array", doc: "an array sorts by its least value", run: ask(all.Order("m")), want: "a b c h i",
		firestore: &difference{"a a b b c h i i", repeats}},
	{name: "descending order by an array", doc: "and by its greatest value when descending",
		run: ask(all.Order("-m").Order("__key__")), want: "i h b c a",
		firestore: &difference{"i i h b c a b a", repeats}},
	{name: "order by the property of an equality", doc: "an order says nothing where all values are the same",
		run: ask(all.FilterField("m", "=", 2).Order("-m")), want: "a b", firestore: &difference{"b b a a", repeats}},
	{name: "two orders", doc: "the second among equals of the first",
		run: ask(all.Order("s").Order("-n").Order("__key__")), want: "e g c i a h b d"},
	{name: "order by key, then a property", doc: "an order leaves out entities without the property",
		run: ask(all.Order("__key__").Order("n")), want: "a b c d e g h i",
		classic: &difference{"a b c d e f g h i", "the classic emulator ignores what follows __key__"}},
	{name: "unindexed", doc: "a value that is excluded from indexes is not found",
		run: ask(all.FilterField("hidden", "=", 1)), want: "g"},
	{name: "property of an entity inside", doc: "indexed properties of entities inside have names with dots",
		run: ask(all.FilterField("home.town", "=", "Bath")), want: "i"},
	{name: "array of an entity inside", doc: "arrays inside, too", run: ask(all.FilterField("home.rooms", "=", 2)),
		want: "i"},
	{name: "limit", doc: "the first results", run: ask(all.Limit(2)), want: "a b"},
	{name: "limit of nothing", doc: "0 is a limit", run: ask(all.Limit(0)), want: ""},
	{name: "offset", doc: "skips results", run: ask(all.Offset(7)), want: "h i"},
	{name: "offset beyond the end", doc: "skips all", run: ask(all.Offset(20)), want: ""},
	{name: "unknown kind", doc: "has no entities", run: ask(datastore.NewQuery("Nothing")), want: ""},
	{name: "filter on a reserved property", doc: "no entity has a property of such a name",
		run: ask(all.FilterField("__x__", "=", 1)), want: ""},
	{name: "strings and bytes", doc: "strings and bytes sort together, and are not equal",
		run: func(e *env) string {
			e.put("B", "a", "v", "x")
			e.put("B", "b", "v", []byte("x"))
			e.put("B", "c", "v", "y")
			return e.keys(datastore.NewQuery("B").Order("v"))
		}, want: "a b c"},
}

func upTo(n int) []any {
	var list []any
	for i := range n {
		list = append(list, i)
	}
	return list
}

// project returns a test case that runs a projection over the entities of letters.
func project(q *datastore.Query) func(*env) string {
	return func(e *env) string { letters(e); return e.results(q) }
}

var projectionCases = []conformanceCase{
	{name: "property", doc: "results have that property, and come from its index", run: project(all.Project("n")),
		want: "e,n=<nil> a,n=1 b,n=2 i,n=2 c,n=3 d,n=str g,n=2.5 h,n=NaN"},
	{name: "array", doc: "one result for each value", run: project(all.Project("m")),
		want: "a,m=1 a,m=2 b,m=2 b,m=3 c,m=3 h,m=5 i,m=9 i,m=t"},
	{name: "two properties", doc: "one result for each combination", run: project(all.Project("n", "m")),
		want: "a,m=1,n=1 a,m=2,n=1 b,m=2,n=2 b,m=3,n=2 c,m=3,n=3 h,m=5,n=NaN i,m=9,n=2 i,m=t,n=2"},
	{name: "with inequality", doc: "only values that satisfy it",
		run:  project(all.Project("m").FilterField("m", ">", 1)),
		want: "a,m=2 b,m=2 b,m=3 c,m=3 h,m=5 i,m=9 i,m=t"},
	{name: "with equality on another property", doc: "filters may be on others",
		run: project(all.Project("n").FilterField("s", "=", "x")), want: "a,n=1 i,n=2 c,n=3 g,n=2.5"},
	{name: "with equality on the same property", doc: "a projected property can't have an equality filter",
		run: project(all.Project("s").FilterField("s", "=", "x")), want: "InvalidArgument"},
	{name: "with in", doc: "nor be in IN", run: project(all.Project("m").FilterField("m", "in", []any{2, 3})),
		want: "InvalidArgument"},
	{name: "beside in", doc: "an entity of several disjunctions is one result",
		run: project(all.Project("n").FilterField("m", "in", []any{2, 3})), want: "a,n=1 b,n=2 c,n=3",
		classic: refusedBy("InvalidArgument")},
	{name: "ordered", doc: "in the order", run: project(all.Project("m").Order("-m").Order("__key__")),
		want: "i,m=t i,m=9 h,m=5 b,m=3 c,m=3 a,m=2 b,m=2 a,m=1"},
	{name: "ordered by an array that is not projected", doc: "one result for each index entry",
		run:  project(all.Project("n").Order("m")),
		want: "a,n=1 a,n=1 b,n=2 b,n=2 c,n=3 h,n=NaN i,n=2 i,n=2"},
	{name: "ordered by another property", doc: "entities without it are no results",
		run:  project(all.Project("s").Order("n")),
		want: "e,s=<nil> a,s=x i,s=x b,s=y c,s=x d,s=z g,s=x h,s=y"},
	{name: "time", doc: "values come as they are indexed: times as integers, in microseconds",
		run: func(e *env) string {
			e.put("T", "a", "t", time.Unix(5, 1000).UTC())
			resp, err := e.runQuery(&pb.Query{Kind: []*pb.KindExpression{{Name: "T"}},
				Projection: []*pb.Projection{{Property: &pb.PropertyReference{Name: "t"}}}})
			e.must(err)
			v := resp.Batch.EntityResults[0].Entity.Properties["t"]
			return fmt.Sprint(show(v), " meaning ", v.Meaning)
		}, want: "5000001 meaning 18"},
	{name: "blob", doc: "values come as they are indexed: blobs as texts, if they are that", run: func(e *env) string {
		e.put("B", "a", "v", []byte("xy"))
		e.put("B", "b", "v", []byte{0xff})
		e.put("B", "c", "v", "x")
		return e.results(datastore.NewQuery("B").Project("v"))
	}, want: "c,v=x a,v=xy b,v=[255]"},
	{name: "with key", doc: "each result has its key anyway", run: project(all.Project("n", "__key__").Limit(2)),
		want: "e,n=<nil> a,n=1"},
	{name: "inequality on the key", doc: "its order comes first",
		run:  project(all.Project("s", "n").FilterField("__key__", ">", key("b"))),
		want: "c,n=3,s=x d,n=str,s=z e,n=<nil>,s=<nil> g,n=2.5,s=x h,n=NaN,s=y i,n=2,s=x"},
	{name: "twice the same", doc: "a property is projected once", run: project(all.Project("n", "n")),
		want: "InvalidArgument"},
	{name: "distinct", doc: "the first result of each value", run: project(all.Project("s").Distinct()),
		want: "e,s=<nil> f,s=w a,s=x b,s=y d,s=z"},
	{name: "distinct on", doc: "the first result of each value of some properties",
		run:  project(all.Project("s", "n").DistinctOn("s")),
		want: "e,n=<nil>,s=<nil> a,n=1,s=x b,n=2,s=y d,n=str,s=z",
		classic: &difference{"e,n=<nil>,s=<nil> a,n=1,s=x b,n=2,s=y c,n=3,s=x d,n=str,s=z g,n=2.5,s=x h,n=NaN,s=y",
			"the classic emulator sorts by the wrong property first"}},
	{name: "distinct on, ordered", doc: "the order decides which is first",
		run:  project(all.Project("s", "n").DistinctOn("s").Order("s").Order("-n")),
		want: "e,n=<nil>,s=<nil> g,n=2.5,s=x h,n=NaN,s=y d,n=str,s=z"},
	{name: "distinct on, ordered by others first", doc: "the distinct properties come first in the order",
		run: project(all.Project("s").DistinctOn("s").Order("n")), want: "InvalidArgument"},
	{name: "unindexed", doc: "a projection comes from an index", run: project(all.Project("hidden")),
		want: "g,hidden=1"},
	{name: "property of an entity inside", doc: "under its name with dots", run: project(all.Project("home.town")),
		want: "i,home.town=Bath"},
}
