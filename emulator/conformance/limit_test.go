package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// writing returns a test case that writes one entity.
func writing(kind, name string, kv ...any) func(*env) string {
	return func(e *env) string {
		_, err := e.commit(upsert(e.name(kind, name), props(kv...)))
		return outcome(err)
	}
}

// looking returns a test case that looks up one key.
func looking(k func(e *env) *pb.Key) func(*env) string {
	return func(e *env) string {
		_, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{k(e)}})
		return outcome(err)
	}
}

func deepValue(depth int) *pb.Value {
	v := value(1)
	for range depth {
		v = value(map[string]*pb.Value{"d": v})
	}
	return v
}

var (
	long     = strings.Repeat("x", 1501)
	fits     = strings.Repeat("x", 1500)
	lenient  = "the emulator does not enforce this limit"
	zeroTime time.Time
)

func pathOf(e *env, elements ...*pb.Key_PathElement) *pb.Key {
	return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: e.project}, Path: elements}
}

func named(kind, name string) *pb.Key_PathElement {
	return &pb.Key_PathElement{Kind: kind, IdType: &pb.Key_PathElement_Name{Name: name}}
}

var limitCases = []conformanceCase{
	{name: "meanings", doc: "long texts (15) are not indexed, and points (9) have a type of their own",
		run: func(e *env) string {
			outcomes := ""
			for _, v := range []*pb.Value{unindexed("x"), value("x"), unindexed(1), value("x"), value(nil)} {
				v.Meaning = 15
				if len(outcomes) > 30 {
					v.Meaning = 9
				}
				_, err := e.commit(upsert(e.name("M", "m"), map[string]*pb.Value{"v": v}))
				outcomes += outcome(err) + " "
			}
			return outcomes
		}, want: "OK InvalidArgument InvalidArgument InvalidArgument InvalidArgument "},
	{name: "indexed text of 1,500 bytes", doc: "is allowed", run: writing("K", "a", "v", fits), want: "OK"},
	{name: "indexed text above 1,500 bytes", doc: "is refused", run: writing("K", "a", "v", long),
		want: "InvalidArgument"},
	{name: "unindexed text above 1,500 bytes", doc: "is allowed", run: writing("K", "a", "v", unindexed(long)),
		want: "OK"},
	{name: "entity of 1 MiB", doc: "an entity has at most 1,048,572 bytes",
		run: writing("K", "a", "v", unindexed(strings.Repeat("x", 1<<20))), want: "InvalidArgument",
		classic: &difference{"OK", lenient}},
	{name: "nearly 1 MiB", doc: "is allowed", run: writing("K", "a", "v", unindexed(strings.Repeat("x", 1<<20-1000))),
		want: "OK"},
	{name: "entities 20 deep", doc: "are allowed", run: writing("K", "a", "v", deepValue(20)), want: "OK"},
	{name: "array 20 deep", doc: "counts as a level", run: writing("K", "a", "v", []any{deepValue(19)}), want: "OK"},
	{name: "array 21 deep", doc: "counts as a level", run: writing("K", "a", "v", []any{deepValue(20)}),
		want: "InvalidArgument", classic: &difference{"OK", lenient}},
	{name: "unindexed text of 1,048,487 bytes", doc: "is allowed",
		run: writing("K", "a", "v", unindexed(strings.Repeat("x", 1048487))), want: "OK"},
	{name: "unindexed text of 1,048,488 bytes", doc: "an unindexed property has at most 1,048,487 bytes",
		run: writing("K", "a", "v", unindexed(strings.Repeat("x", 1048488))), want: "InvalidArgument",
		classic: &difference{"OK", lenient}},
	{name: "unindexed blob of 1,048,488 bytes", doc: "an unindexed property has at most 1,048,487 bytes",
		run: writing("K", "a", "v", unindexed(make([]byte, 1048488))), want: "InvalidArgument"},
	{name: "incomplete key as a value", doc: "is refused",
		run: writing("K", "a", "v", &pb.Key{Path: []*pb.Key_PathElement{{Kind: "K"}}}), want: "InvalidArgument"},
	{name: "incomplete key in an array", doc: "is refused",
		run: writing("K", "a", "v", []any{&pb.Key{Path: []*pb.Key_PathElement{{Kind: "K"}}}}), want: "InvalidArgument"},
	{name: "incomplete key of an entity inside", doc: "is allowed",
		run: writing("K", "a", "v", &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{
			Key: &pb.Key{Path: []*pb.Key_PathElement{{Kind: "K"}}}}}}), want: "OK"},
	{name: "filter by text above 1,500 bytes", doc: "is refused", run: filtering(pb.PropertyFilter_EQUAL, long),
		want: "InvalidArgument"},
	{name: "inequality with a blob above 1,500 bytes", doc: "is refused", run: filtering(pb.PropertyFilter_GREATER_THAN,
		[]byte(long)), want: "InvalidArgument"},
	{name: "filter by a time before the year 1", doc: "times are from the years 1 to 9999",
		run: filtering(pb.PropertyFilter_LESS_THAN, zeroTime.AddDate(-1, 0, 0)), want: "InvalidArgument"},
	{name: "filter by a point beyond the pole", doc: "a latitude is in [-90, 90]",
		run: filtering(pb.PropertyFilter_EQUAL, &pb.Value{ValueType: &pb.Value_GeoPointValue{
			GeoPointValue: &latlng.LatLng{Latitude: 91}}}), want: "InvalidArgument"},
	{name: "filter by a value of an unknown meaning", doc: "is refused, as in an entity",
		run: filtering(pb.PropertyFilter_EQUAL, ofMeaning(1, 99)), want: "InvalidArgument"},
	{name: "filter by a result of a projection", doc: "is allowed",
		run: filtering(pb.PropertyFilter_EQUAL, ofMeaning(1, 18)), want: "OK"},
	{name: "long property names in a query", doc: "a name has at most 1,500 bytes", run: func(e *env) string {
		name := &pb.PropertyReference{Name: long}
		outcomes := ""
		for _, q := range []*pb.Query{
			{Filter: rawFilter(long, pb.PropertyFilter_EQUAL, 1)},
			{Order: []*pb.PropertyOrder{{Property: name}}},
			{Projection: []*pb.Projection{{Property: name}}},
			{DistinctOn: []*pb.PropertyReference{name}},
		} {
			q.Kind = kindP
			_, err := e.runQuery(q)
			outcomes += outcome(err) + " "
		}
		return outcomes
	}, want: strings.Repeat("InvalidArgument ", 4)},
	{name: "filter by text of 1,500 bytes", doc: "is allowed", run: filtering(pb.PropertyFilter_EQUAL, fits),
		want: "OK"},
	{name: "entities 21 deep", doc: "are refused", run: writing("K", "a", "v", deepValue(21)), want: "InvalidArgument"},
	{name: "array of arrays", doc: "is refused", run: writing("K", "a", "v", []any{[]any{1}}), want: "InvalidArgument"},
	{name: "array excluded from indexes", doc: "its elements are excluded instead",
		run: writing("K", "a", "v", unindexed([]any{1})), want: "InvalidArgument"},
	{name: "value of no type", doc: "is refused", run: writing("K", "a", "v", new(pb.Value)), want: "InvalidArgument"},
	{name: "reserved property", doc: "names of the form __x__ are reserved", run: writing("K", "a", "__v__", 1),
		want: "InvalidArgument"},
	{name: "empty property name", doc: "is refused", run: writing("K", "a", "", 1), want: "InvalidArgument"},
	{name: "long property name", doc: "a name has at most 1,500 bytes", run: writing("K", "a", long, 1),
		want: "InvalidArgument"},
	{name: "reserved kind", doc: "names of the form __x__ are reserved", run: writing("__K__", "a"),
		want: "InvalidArgument"},
	{name: "reserved key name", doc: "names of the form __x__ are reserved", run: writing("K", "__a__"),
		want: "InvalidArgument"},
	{name: "empty kind", doc: "is refused", run: writing("", "a"), want: "InvalidArgument"},
	{name: "empty key name", doc: "is refused", run: writing("K", ""), want: "InvalidArgument"},
	{name: "long key name", doc: "a name has at most 1,500 bytes", run: writing("K", long), want: "InvalidArgument"},
	{name: "long kind", doc: "a kind has at most 1,500 bytes", run: writing(long, "a"), want: "InvalidArgument"},
	{name: "key above 6 KiB", doc: "a key has at most 6 KiB", run: func(e *env) string {
		_, err := e.commit(upsert(pathOf(e, named(fits, fits), named(fits, fits), named("K", fits)), nil))
		return outcome(err)
	}, want: "InvalidArgument", classic: &difference{"OK", lenient}, firestore: &difference{"OK", lenient}},
	{name: "path of 101 elements", doc: "a path has at most 100", run: looking(func(e *env) *pb.Key {
		k := pathOf(e)
		for range 101 {
			k.Path = append(k.Path, named("K", "a"))
		}
		return k
	}), want: "InvalidArgument"},
	{name: "id 0", doc: "is no id", run: looking(func(e *env) *pb.Key {
		return pathOf(e, &pb.Key_PathElement{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: 0}})
	}), want: "InvalidArgument"},
	{name: "incomplete key", doc: "can't be looked up", run: looking(func(e *env) *pb.Key {
		return pathOf(e, &pb.Key_PathElement{Kind: "K"})
	}), want: "InvalidArgument"},
	{name: "incomplete parent", doc: "only the last element can be incomplete", run: looking(func(e *env) *pb.Key {
		return pathOf(e, &pb.Key_PathElement{Kind: "K"}, named("K", "a"))
	}), want: "InvalidArgument"},
	{name: "empty path", doc: "is no key", run: looking(func(e *env) *pb.Key { return pathOf(e) }),
		want: "InvalidArgument"},
	{name: "key of another project", doc: "is refused", run: looking(func(e *env) *pb.Key {
		k := e.name("K", "a")
		k.PartitionId.ProjectId = "another"
		return k
	}), want: "InvalidArgument"},
	{name: "reserved namespace", doc: "names of the form __x__ are reserved", run: looking(func(e *env) *pb.Key {
		k := e.name("K", "a")
		k.PartitionId.NamespaceId = "__n__"
		return k
	}), want: "InvalidArgument", classic: &difference{"OK", lenient}, firestore: &difference{"OK", lenient}},
	{name: "namespace with other characters", doc: "a namespace matches [0-9A-Za-z._-]{0,100}",
		run: looking(func(e *env) *pb.Key {
			k := e.name("K", "a")
			k.PartitionId.NamespaceId = "a b"
			return k
		}), want: "InvalidArgument"},
	{name: "lookup of 1,000 keys", doc: "is allowed", run: lookups(1000), want: "OK"},
	{name: "lookup of 1,001 keys", doc: "is refused", run: lookups(1001), want: "InvalidArgument",
		classic: &difference{"OK", lenient}, firestore: &difference{"OK", lenient}},
	{name: "empty lookup", doc: "finds nothing", run: lookups(0), want: "OK"},
	{name: "negative limit", doc: "is refused", run: func(e *env) string {
		_, err := e.runQuery(&pb.Query{Kind: kindP, Limit: wrapperspb.Int32(-1)})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "negative offset", doc: "is refused", run: func(e *env) string {
		_, err := e.runQuery(&pb.Query{Kind: kindP, Offset: -1})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "100 filters", doc: "are allowed", run: combining(100, pb.PropertyFilter_EQUAL, 1, false), want: "OK"},
	{name: "101 filters", doc: "filters, sort orders and an ancestor are at most 100 together",
		run: combining(101, pb.PropertyFilter_EQUAL, 1, false), want: "InvalidArgument",
		classic: &difference{"OK", lenient}},
	{name: "98 filters, an order and an ancestor", doc: "are allowed",
		run: combining(98, pb.PropertyFilter_EQUAL, 1, true), want: "OK"},
	{name: "99 filters, an order and an ancestor", doc: "are 101 together",
		run: combining(99, pb.PropertyFilter_EQUAL, 1, true), want: "InvalidArgument",
		classic: &difference{"OK", lenient}},
	{name: "72 filters, and one with 29 values", doc: "each value of an IN is a filter",
		run: combining(73, pb.PropertyFilter_EQUAL, 29, false), want: "InvalidArgument"},
	{name: "equal filters", doc: "count once: the documentation is silent", run: func(e *env) string {
		one, many := rawFilter("p", pb.PropertyFilter_EQUAL, 1), make([]any, 10)
		for i := range many {
			many[i] = i
		}
		outcomes, in := "", rawFilter("p", pb.PropertyFilter_IN, many)
		for _, f := range []*pb.Filter{both(slices.Repeat([]*pb.Filter{one}, 101)...), both(in, in),
			either(slices.Repeat([]*pb.Filter{one}, 31)...)} {
			_, err := e.runQuery(&pb.Query{Kind: kindP, Filter: f})
			outcomes += outcome(err) + " "
		}
		return outcomes
	}, want: "OK OK OK ",
		classic: &difference{"OK InvalidArgument InvalidArgument ", "IN and OR are newer than the classic emulator"}},
	{name: "inequalities on 10 properties", doc: "are allowed",
		run: combining(10, pb.PropertyFilter_GREATER_THAN, 1, false), want: "OK",
		classic: &difference{"InvalidArgument", oneProperty}},
	{name: "inequalities on 11 properties", doc: "a query has at most 10",
		run: combining(11, pb.PropertyFilter_GREATER_THAN, 1, false), want: "InvalidArgument"},
	{name: "two kinds", doc: "a query has one", run: func(e *env) string {
		_, err := e.runQuery(&pb.Query{Kind: append(kindP, kindP...)})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "no query", doc: "is refused", run: func(e *env) string {
		_, err := e.raw.RunQuery(e.Context(), &pb.RunQueryRequest{ProjectId: e.project})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "database (default)", doc: "the default database is the empty name", run: func(e *env) string {
		_, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, DatabaseId: "(default)",
			Keys: []*pb.Key{pathOf(e, named("K", "a"))}})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "no project", doc: "is refused", run: func(e *env) string {
		_, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{Keys: []*pb.Key{e.name("K", "a")}})
		return outcome(err)
	}, want: "InvalidArgument", classic: &difference{"Unknown", "the classic emulator fails without an answer"}},
	{name: "mutation without operation", doc: "is refused", run: func(e *env) string {
		_, err := e.commit(new(pb.Mutation))
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "time before the year 1", doc: "times are from the years 1 to 9999", run: writing("K", "a", "v", &pb.Value{
		ValueType: &pb.Value_TimestampValue{TimestampValue: value(zeroTime.AddDate(-1, 0, 0)).GetTimestampValue()}}),
		want: "InvalidArgument"},
	{name: "commit of 2,000 mutations", doc: "is allowed", run: func(e *env) string {
		var mutations []*pb.Mutation
		for i := range 2000 {
			mutations = append(mutations,
				upsert(pathOf(e, &pb.Key_PathElement{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: int64(i + 1)}}),
					nil))
		}
		_, err := e.commit(mutations...)
		return outcome(err)
	}, want: "OK"},
	{name: "commit above 10 MiB", doc: "is refused", run: func(e *env) string {
		var mutations []*pb.Mutation
		for i := range 11 {
			k := pathOf(e, &pb.Key_PathElement{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: int64(i + 1)}})
			mutations = append(mutations, upsert(k, props("v", unindexed(strings.Repeat("x", 1<<20-1000)))))
		}
		_, err := e.commit(mutations...)
		return outcome(err)
	}, want: "InvalidArgument", classic: &difference{"*", "the connection is closed on such a request"},
		firestore: &difference{"*", "gRPC itself refuses such a request"}},
}

// filtering returns a test case that runs a query with a filter on one property.
func filtering(op pb.PropertyFilter_Operator, v any) func(*env) string {
	return func(e *env) string {
		_, err := e.runQuery(&pb.Query{Kind: kindP, Filter: rawFilter("s", op, v)})
		return outcome(err)
	}
}

// combining returns a test case that runs a query with n filters on different properties. If values
// is more than 1, the first filter is an IN with that number of values. If more is true, the query
// also has an ancestor and an order.
func combining(n int, op pb.PropertyFilter_Operator, values int, more bool) func(*env) string {
	return func(e *env) string {
		filters := make([]*pb.Filter, n)
		for i := range filters {
			filters[i] = rawFilter(fmt.Sprint("p", i), op, i)
		}
		if values > 1 {
			either := make([]any, values)
			for i := range either {
				either[i] = i
			}
			filters[0] = rawFilter("p0", pb.PropertyFilter_IN, either)
		}
		q := &pb.Query{Kind: kindP}
		if more {
			filters = append(filters, rawFilter("__key__", pb.PropertyFilter_HAS_ANCESTOR, e.name("P", "a")))
			orderedBy(q, "o", pb.PropertyOrder_ASCENDING)
		}
		q.Filter = both(filters...)
		_, err := e.runQuery(q)
		return outcome(err)
	}
}

// ofMeaning returns a value with a meaning.
func ofMeaning(v any, meaning int32) *pb.Value {
	m := value(v)
	m.Meaning = meaning
	return m
}

func rawFilter(property string, op pb.PropertyFilter_Operator, v any) *pb.Filter {
	return &pb.Filter{
		FilterType: &pb.Filter_PropertyFilter{
			PropertyFilter: &pb.PropertyFilter{Property: &pb.PropertyReference{Name: property}, Op: op,
				Value: value(v)}}}
}

func both(filters ...*pb.Filter) *pb.Filter {
	return &pb.Filter{
		FilterType: &pb.Filter_CompositeFilter{CompositeFilter: &pb.CompositeFilter{Op: pb.CompositeFilter_AND,
			Filters: filters}}}
}

func lookups(n int) func(*env) string {
	return func(e *env) string {
		req := &pb.LookupRequest{ProjectId: e.project}
		for i := range n {
			req.Keys = append(req.Keys,
				pathOf(e, &pb.Key_PathElement{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: int64(i + 1)}}))
		}
		_, err := e.raw.Lookup(e.Context(), req)
		return outcome(err)
	}
}
