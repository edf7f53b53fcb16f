package conformance

import (
	"math"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const noAggregations = "the classic emulator has no aggregations"

func aggregate(q *datastore.AggregationQuery) func(*env) string {
	return func(e *env) string {
		letters(e)
		result, err := e.client.RunAggregationQuery(e.Context(), q)
		if err != nil {
			return outcome(err)
		}
		var all []string
		for alias, v := range result {
			all = append(all, alias+"="+show(v.(*pb.Value)))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
}

func unserved(c conformanceCase) conformanceCase {
	if c.want != "Unimplemented" {
		c.classic = &difference{"Unimplemented", noAggregations}
	}
	return c
}

func sumOf(property string) *pb.AggregationQuery_Aggregation {
	return &pb.AggregationQuery_Aggregation{Alias: "s" + property, Operator: &pb.AggregationQuery_Aggregation_Sum_{
		Sum: &pb.AggregationQuery_Aggregation_Sum{Property: &pb.PropertyReference{Name: property}}}}
}

func averageOf(property string) *pb.AggregationQuery_Aggregation {
	return &pb.AggregationQuery_Aggregation{Alias: "a" + property, Operator: &pb.AggregationQuery_Aggregation_Avg_{
		Avg: &pb.AggregationQuery_Aggregation_Avg{Property: &pb.PropertyReference{Name: property}}}}
}

func countOf() *pb.AggregationQuery_Aggregation {
	return &pb.AggregationQuery_Aggregation{Alias: "count",
		Operator: &pb.AggregationQuery_Aggregation_Count_{Count: new(pb.AggregationQuery_Aggregation_Count)}}
}

// entities are test data: the properties of each entity. The keys are named a, b, c and so on.
type entities []map[string]*pb.Value

// values returns entities that have only the property n, one for each value.
func values(all ...any) (list entities) {
	for _, v := range all {
		list = append(list, props("n", v))
	}
	return list
}

// over returns a test case that puts the entities, and runs aggregations over a query of their
// kind.
func (list entities) over(q *pb.Query, aggregations ...*pb.AggregationQuery_Aggregation) func(*env) string {
	return func(e *env) string {
		var mutations []*pb.Mutation
		for i, properties := range list {
			mutations = append(mutations, upsert(e.name("S", string(rune('a'+i))), properties))
		}
		_, err := e.commit(mutations...)
		e.must(err)
		q := proto.CloneOf(q)
		q.Kind = []*pb.KindExpression{{Name: "S"}}
		resp, err := e.raw.RunAggregationQuery(e.Context(), &pb.RunAggregationQueryRequest{ProjectId: e.project,
			QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
				AggregationQuery: &pb.AggregationQuery{QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: q},
					Aggregations: aggregations}}})
		e.must(err)
		return showAll(resp.Batch.AggregationResults[0].AggregateProperties)
	}
}

func first(n int32) *pb.Query { return &pb.Query{Limit: wrapperspb.Int32(n)} }

// pairs are entities with two properties. Sorted by n and by m, they are in different orders.
var pairs = entities{props("n", 5, "m", 1), props("n", 1, "m", 9), props("n", 2, "m", 3)}

func orderedBy(q *pb.Query, name string, direction pb.PropertyOrder_Direction) *pb.Query {
	q.Order = append(q.Order, &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name}, Direction: direction})
	return q
}

func projecting(q *pb.Query, names ...string) *pb.Query {
	for _, name := range names {
		q.Projection = append(q.Projection, &pb.Projection{Property: &pb.PropertyReference{Name: name}})
	}
	return q
}

var aggregationCases = []conformanceCase{
	unserved(conformanceCase{name: "count", doc: "of results", run: aggregate(all.NewAggregationQuery().WithCount("n")),
		want: "n=9"}),
	unserved(conformanceCase{name: "count with limit", doc: "a limit limits what is counted",
		run: aggregate(all.Limit(4).NewAggregationQuery().WithCount("n")), want: "n=4"}),
	unserved(conformanceCase{name: "count of a filter", doc: "of results",
		run: aggregate(all.FilterField("s", "=", "x").NewAggregationQuery().WithCount("n")), want: "n=4"}),
	unserved(conformanceCase{name: "sum of integers", doc: "is an integer",
		run: aggregate(all.FilterField("n", "<=", 3).NewAggregationQuery().WithSum("n", "s")), want: "s=8"}),
	unserved(conformanceCase{name: "sum of numbers", doc: "with a double is one; what is no number does not count",
		run: aggregate(all.FilterField("n", "<=", 2.5).NewAggregationQuery().WithSum("n", "s")), want: "s=10.5"}),
	unserved(conformanceCase{name: "sum with NaN", doc: "is NaN",
		run: aggregate(all.NewAggregationQuery().WithSum("n", "s")), want: "s=NaN"}),
	unserved(conformanceCase{name: "sum of nothing", doc: "is 0",
		run: aggregate(datastore.NewQuery("None").NewAggregationQuery().WithSum("n", "s")), want: "s=0"}),
	unserved(conformanceCase{name: "average", doc: "of numbers",
		run: aggregate(all.FilterField("n", "<=", 3).NewAggregationQuery().WithAvg("n", "a")), want: "a=2.0"}),
	unserved(conformanceCase{name: "average of nothing", doc: "is null",
		run: aggregate(datastore.NewQuery("None").NewAggregationQuery().WithAvg("n", "a")), want: "a=null"}),
	unserved(conformanceCase{name: "several", doc: "who lacks one of the properties is in none of the results",
		run: aggregate(all.NewAggregationQuery().WithCount("n").WithSum("hidden", "h")), want: "h=1 n=1"}),
	unserved(conformanceCase{name: "aliases", doc: "those without a name are numbered among themselves",
		run: func(e *env) string {
			letters(e)
			count := func(alias string) *pb.AggregationQuery_Aggregation {
				return &pb.AggregationQuery_Aggregation{Alias: alias,
					Operator: &pb.AggregationQuery_Aggregation_Count_{
						Count: new(pb.AggregationQuery_Aggregation_Count)}}
			}
			resp, err := e.raw.RunAggregationQuery(e.Context(), &pb.RunAggregationQueryRequest{ProjectId: e.project,
				QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
					AggregationQuery: &pb.AggregationQuery{
						QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: &pb.Query{Kind: kindP}},
						Aggregations: []*pb.AggregationQuery_Aggregation{count("x"), count(""), count("z"),
							count("")}}}})
			e.must(err)
			return showAll(resp.Batch.AggregationResults[0].AggregateProperties)
		}, want: "{property_1=9 property_2=9 x=9 z=9}"}),
	unserved(conformanceCase{name: "sum with limit", doc: "the aggregated property is an implicit order",
		run: values(5, 1, 3).over(first(2), sumOf("n")), want: "{sn=4}"}),
	unserved(conformanceCase{name: "sum with offset", doc: "the aggregated property is an implicit order",
		run: values(5, 1, 3).over(&pb.Query{Offset: 1}, sumOf("n")), want: "{sn=8}"}),
	unserved(conformanceCase{name: "count beside a sum", doc: "counts in its order",
		run: values(5, nil, 1, 3).over(first(3), countOf(), sumOf("n")), want: "{count=3 sn=4}"}),
	unserved(conformanceCase{name: "sum of an ordered query", doc: "the query's own order comes first",
		run: pairs.over(orderedBy(first(2), "m", pb.PropertyOrder_DESCENDING), sumOf("n")), want: "{sn=3}"}),
	unserved(conformanceCase{name: "sum of ties", doc: "the implicit order has the direction of the last one",
		run: entities{props("n", 5, "m", 1), props("n", 1, "m", 1), props("n", 2, "m", 1)}.over(orderedBy(first(2),
			"m", pb.PropertyOrder_DESCENDING), sumOf("n")),
		want: "{sn=7}"}),
	unserved(conformanceCase{name: "two sums with limit", doc: "by the properties' names",
		run: pairs.over(first(2), sumOf("n"), sumOf("m")), want: "{sm=4 sn=7}"}),
	unserved(conformanceCase{name: "sum of keys", doc: "__key__ can't be aggregated",
		run: values(1).over(new(pb.Query), sumOf("__key__")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "average of keys", doc: "__key__ can't be aggregated",
		run: values(1).over(new(pb.Query), averageOf("__key__")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "sum over a keys-only query", doc: "is refused",
		run: values(1).over(projecting(new(pb.Query), "__key__"), sumOf("n")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "sum over another projection", doc: "is refused",
		run: pairs.over(projecting(new(pb.Query), "m"), sumOf("n")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "sum over a projection", doc: "is served if that has the property",
		run: pairs.over(projecting(first(2), "m", "n"), sumOf("n")), want: "{sn=7}"}),
	unserved(conformanceCase{name: "sum over arrays",
		doc:  "takes what is in the index: each of an array's values, as a projection does",
		run:  values([]any{5, 1, 5}, 3, []any{"x"}).over(new(pb.Query), countOf(), sumOf("n"), averageOf("n")),
		want: "{an=3.0 count=4 sn=9}"}),
	unserved(conformanceCase{name: "sum over arrays with limit", doc: "a limit counts entries of the index",
		run: values([]any{5, 1}, 3).over(first(2), countOf(), sumOf("n")), want: "{count=2 sn=4}"}),
	unserved(conformanceCase{name: "sum over times", doc: "times are integers in an index",
		run: values(time.UnixMicro(5), 1).over(new(pb.Query), sumOf("n")), want: "{sn=6}"}),
	unserved(conformanceCase{name: "sum of what is not indexed", doc: "is not in the index",
		run: values(unindexed(7), 1).over(new(pb.Query), countOf(), sumOf("n")), want: "{count=1 sn=1}"}),
	unserved(conformanceCase{name: "average above 2^53", doc: "is that of the exact sum",
		run:  values(1<<53+1, 1, 1).over(new(pb.Query), sumOf("n"), averageOf("n")),
		want: "{an=3002399751580332.0 sn=9007199254740995}"}),
	unserved(conformanceCase{name: "sum above 64 bits and back", doc: "is exact",
		run: values(math.MaxInt64, 1, -2).over(new(pb.Query), sumOf("n")), want: "{sn=9223372036854775806}"}),
	unserved(conformanceCase{name: "sum above 64 bits", doc: "is a double",
		run:  values(math.MaxInt64, math.MaxInt64, -3).over(new(pb.Query), sumOf("n")),
		want: "{sn=18446744073709551616.0}"}),
	unserved(conformanceCase{name: "sum of integers and doubles", doc: "is exact before it is rounded",
		run: values(1<<53, 1, 1, 0.0).over(new(pb.Query), sumOf("n")), want: "{sn=9007199254740994.0}"}),
	unserved(conformanceCase{name: "sum of infinities", doc: "follows IEEE 754",
		run:  values(math.Inf(1), math.Inf(-1)).over(new(pb.Query), sumOf("n"), averageOf("n")),
		want: "{an=NaN sn=NaN}"}),
	unserved(conformanceCase{name: "duplicate alias", doc: "aliases are different",
		run: aggregate(all.NewAggregationQuery().WithCount("n").WithSum("n", "n")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "six", doc: "a query has at most 5 aggregations",
		run: aggregate(all.NewAggregationQuery().WithCount("a").WithCount("b").WithCount("c").WithCount("d").WithCount(
			"e").WithCount("f")),
		want: "InvalidArgument", firestore: &difference{"Unknown", "the Firestore emulator fails without a code"}}),
}

var metadataCases = []conformanceCase{
	{name: "kinds", doc: "__kind__ has an entity for each kind", run: climb(datastore.NewQuery("__kind__")),
		want: "P Q Root", firestore: unknownKinds},
	{name: "kinds of a namespace", doc: "in that namespace",
		run: climb(datastore.NewQuery("__kind__").Namespace("elsewhere")), want: "P", firestore: unknownKinds},
	{name: "range of kinds", doc: "keys can be bounded",
		run: climb(datastore.NewQuery("__kind__").FilterField("__key__", ">",
			datastore.NameKey("__kind__", "P", nil))),
		want: "Q Root", firestore: unknownKinds},
	{name: "namespaces", doc: "__namespace__ has one for each namespace; the empty one has the id 1",
		run: climb(datastore.NewQuery("__namespace__")), want: "1 elsewhere", firestore: unknownKinds},
	{name: "properties", doc: "__property__ has one for each indexed property of a kind",
		run:  ask(datastore.NewQuery("__property__").Ancestor(datastore.NameKey("__kind__", "P", nil))),
		want: "hidden home.rooms home.town m n s", firestore: &difference{"", unknownKinds.why}},
	{name: "write", doc: "reserved kinds can't be written", run: func(e *env) string {
		_, err := e.commit(upsert(e.name("__kind__", "x"), nil))
		return outcome(err)
	}, want: "InvalidArgument"},
}

var unknownKinds = &difference{"InvalidArgument", "the Firestore emulator has no metadata"}
