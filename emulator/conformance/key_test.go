package conformance

import (
	"fmt"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

func key(name string) *datastore.Key { return datastore.NameKey("P", name, nil) }

// tree puts entities of several kinds. Some have ancestors, and one is in another namespace.
func tree(e *env) {
	e.Helper()
	root := datastore.NameKey("Root", "r", nil)
	far := datastore.NameKey("P", "far", nil)
	far.Namespace = "elsewhere"
	for _, k := range []*datastore.Key{
		root, datastore.NameKey("P", "z", root), datastore.NameKey("P", "y", datastore.IDKey("Mid", 5, root)),
		datastore.NameKey("Q", "q", root),
		datastore.NameKey("P", "x", nil), datastore.IDKey("P", 7, nil), datastore.IDKey("P", -7, nil),
		datastore.NameKey("P", "7", nil), far,
	} {
		_, err := e.client.Put(e.Context(), k, &datastore.PropertyList{{Name: "n", Value: int64(1)}})
		e.must(err)
	}
}

func climb(q *datastore.Query) func(*env) string {
	return func(e *env) string { tree(e); return e.keys(q) }
}

var keyCases = []conformanceCase{
	{name: "order", doc: "kinds, then ids before names, ids as signed integers; ancestors before descendants",
		run: climb(all), want: "-7 7 7 x y z"},
	{name: "order of characters above U+FFFF", doc: "names are ordered by their bytes in UTF-8",
		run: func(e *env) string {
			e.put("P", "\U00010000")
			e.put("P", "\uffff\ue000")
			e.put("P", "\uffff")
			return e.keys(all) + "; " + e.keys(all.FilterField("__key__", ">", key("\uffff")))
		}, want: "\uffff \uffff\ue000 \U00010000; \uffff\ue000 \U00010000",
		classic: &difference{"\U00010000 \uffff \uffff\ue000; \uffff\ue000",
			"the classic emulator compares names as Java strings, by their UTF-16 code units"}},
	{name: "descending", doc: "the other way round", run: climb(all.Order("-__key__")), want: "z y x 7 7 -7"},
	{name: "ancestor", doc: "the entity and its descendants",
		run: climb(all.Ancestor(datastore.NameKey("Root", "r", nil))), want: "y z"},
	{name: "ancestor itself", doc: "an entity is its own ancestor",
		run: climb(datastore.NewQuery("Root").Ancestor(datastore.NameKey("Root", "r", nil))), want: "r"},
	{name: "ancestor without kind", doc: "all descendants, whatever their kind",
		run: climb(datastore.NewQuery("").Ancestor(datastore.NameKey("Root", "r", nil))), want: "r y z q"},
	{name: "ancestor that does not exist", doc: "may have descendants all the same",
		run: climb(all.Ancestor(datastore.IDKey("Mid", 5, datastore.NameKey("Root", "r", nil)))), want: "y"},
	{name: "ancestor and equality", doc: "both hold",
		run: climb(all.Ancestor(datastore.NameKey("Root", "r", nil)).FilterField("n", "=", 1)), want: "y z"},
	{name: "ancestor and order", doc: "both hold", run: func(e *env) string {
		tree(e)
		root := datastore.NameKey("Root", "r", nil)
		for i, k := range []*datastore.Key{datastore.NameKey("P", "z", root),
			datastore.NameKey("P", "y", datastore.IDKey("Mid", 5, root)), datastore.NameKey("P", "w\x00\x01", root)} {
			_, err := e.client.Put(e.Context(), k, &datastore.PropertyList{{Name: "n", Value: int64(i % 2)},
				{Name: "s", Value: k.Name}})
			e.must(err)
		}
		return e.keys(all.Ancestor(root).Order("n")) + "; " +
			e.keys(all.Ancestor(root).FilterField("n", "=", 0).Order("-s")) + "; " +
			e.keys(all.Ancestor(datastore.NameKey("P", "w\x00\x01", root)).Order("s"))
	}, want: "w\x00\x01 z y; z w\x00\x01; w\x00\x01"},
	{name: "without kind", doc: "entities of all kinds, by key",
		run:  climb(datastore.NewQuery("").FilterField("__key__", ">", datastore.NameKey("P", "a", nil))),
		want: "x r y z q"},
	{name: "without kind, with a filter", doc: "a query without kind has no filters on properties",
		run: climb(datastore.NewQuery("").FilterField("n", "=", 1)), want: "InvalidArgument"},
	{name: "namespace", doc: "a query is over one namespace", run: climb(all.Namespace("elsewhere")), want: "far"},
	{name: "range", doc: "keys compare as they sort",
		run: ask(all.FilterField("__key__", ">=", key("b")).FilterField("__key__", "<", key("e"))), want: "b c d"},
	{name: "range of another kind", doc: "bounds may be keys of any kind",
		run: climb(all.FilterField("__key__", ">", datastore.NameKey("Q", "a", nil))), want: "y z"},
	{name: "empty range", doc: "no results",
		run: ask(all.FilterField("__key__", ">=", key("e")).FilterField("__key__", "<", key("b"))), want: ""},
	{name: "equality", doc: "one entity", run: ask(all.FilterField("__key__", "=", key("c"))), want: "c"},
	{name: "in", doc: "those that exist, by key",
		run: ask(all.FilterField("__key__", "in", []any{key("c"), key("a"), key("zz")})), want: "a c",
		classic: refusedBy("InvalidArgument")},
	{name: "not equal", doc: "all others", run: ask(all.FilterField("__key__", "!=", key("a"))),
		want: "b c d e f g h i", classic: refusedBy("Unknown")},
	{name: "equality and range", doc: "both hold",
		run: ask(all.FilterField("s", "=", "x").FilterField("__key__", ">", key("a"))), want: "c g i"},
	{name: "inequality and range", doc: "both hold, ordered by the properties of inequalities",
		run: ask(all.FilterField("n", ">", 1).FilterField("__key__", ">", key("b"))), want: "i c d g h",
		classic: &difference{"InvalidArgument", oneProperty}},
	{name: "descending without kind", doc: "a query without kind has no order but ascending keys",
		run: climb(datastore.NewQuery("").Order("-__key__")), want: "InvalidArgument"},
	{name: "descending descendants without kind", doc: "whether it has an ancestor or not",
		run:  climb(datastore.NewQuery("").Ancestor(datastore.NameKey("Root", "r", nil)).Order("-__key__")),
		want: "InvalidArgument"},
	{name: "two ancestors", doc: "a query has one", run: func(e *env) string {
		_, err := e.runQuery(&pb.Query{Kind: kindP, Filter: both(
			rawFilter("__key__", pb.PropertyFilter_HAS_ANCESTOR, e.name("Root", "r")),
			rawFilter("__key__", pb.PropertyFilter_HAS_ANCESTOR, pathOf(e, named("Root", "r"), named("Mid", "m"))))})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "distinct by key", doc: "results can't be grouped by __key__", run: func(e *env) string {
		q := projecting(&pb.Query{Kind: kindP}, "n")
		q.DistinctOn = []*pb.PropertyReference{{Name: "__key__"}, {Name: "n"}}
		_, err := e.runQuery(q)
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "reserve a name", doc: "is allowed, and says nothing", run: func(e *env) string {
		_, err := e.raw.ReserveIds(e.Context(),
			&pb.ReserveIdsRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("K", "a")}})
		return outcome(err)
	}, want: "OK"},
	{name: "reserve an incomplete key", doc: "is refused", run: func(e *env) string {
		_, err := e.raw.ReserveIds(e.Context(),
			&pb.ReserveIdsRequest{ProjectId: e.project, Keys: []*pb.Key{pathOf(e, &pb.Key_PathElement{Kind: "K"})}})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "scatter, then key", doc: "an order by __scatter__ is one by key among equals: saying so changes nothing",
		run: func(e *env) string {
			var mutations []*pb.Mutation
			for i := range 1000 {
				mutations = append(mutations,
					upsert(pathOf(e, &pb.Key_PathElement{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: int64(i + 1)}}),
						nil))
			}
			_, err := e.commit(mutations...)
			e.must(err)
			alone, both := e.keys(datastore.NewQuery("K").Order("__scatter__")),
				e.keys(datastore.NewQuery("K").Order("__scatter__").Order("__key__"))
			return fmt.Sprint(alone == both && alone != "")
		}, want: "true", firestore: &difference{"false", "the Firestore emulator has no __scatter__"}},
	{name: "filter that is no key", doc: "__key__ compares with keys", run: ask(all.FilterField("__key__", ">", "b")),
		want: "InvalidArgument"},
	{name: "scatter with a range", doc: "an order by __scatter__ excludes inequalities",
		run: ask(all.FilterField("__key__", ">", key("b")).Order("__scatter__")), want: "InvalidArgument",
		firestore: &difference{"", "the Firestore emulator has no scatter keys at all"}},
}
