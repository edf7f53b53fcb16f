package conformance

import (
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
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

var aggregationCases = []conformanceCase{
	unserved(conformanceCase{name: "count", doc: "of results", run: aggregate(all.NewAggregationQuery().WithCount("n")), want: "n=9"}),
	unserved(conformanceCase{name: "count with limit", doc: "a limit limits what is counted", run: aggregate(all.Limit(4).NewAggregationQuery().WithCount("n")), want: "n=4"}),
	unserved(conformanceCase{name: "count of a filter", doc: "of results", run: aggregate(all.FilterField("s", "=", "x").NewAggregationQuery().WithCount("n")), want: "n=4"}),
	unserved(conformanceCase{name: "sum of integers", doc: "is an integer", run: aggregate(all.FilterField("n", "<=", 3).NewAggregationQuery().WithSum("n", "s")), want: "s=8"}),
	unserved(conformanceCase{name: "sum of numbers", doc: "with a double is one; what is no number does not count",
		run: aggregate(all.FilterField("n", "<=", 2.5).NewAggregationQuery().WithSum("n", "s")), want: "s=10.5"}),
	unserved(conformanceCase{name: "sum with NaN", doc: "is NaN", run: aggregate(all.NewAggregationQuery().WithSum("n", "s")), want: "s=NaN"}),
	unserved(conformanceCase{name: "sum of nothing", doc: "is 0", run: aggregate(datastore.NewQuery("None").NewAggregationQuery().WithSum("n", "s")), want: "s=0"}),
	unserved(conformanceCase{name: "average", doc: "of numbers", run: aggregate(all.FilterField("n", "<=", 3).NewAggregationQuery().WithAvg("n", "a")), want: "a=2.0"}),
	unserved(conformanceCase{name: "average of nothing", doc: "is null", run: aggregate(datastore.NewQuery("None").NewAggregationQuery().WithAvg("n", "a")), want: "a=null"}),
	unserved(conformanceCase{name: "several", doc: "who lacks one of the properties is in none of the results",
		run: aggregate(all.NewAggregationQuery().WithCount("n").WithSum("hidden", "h")), want: "h=1 n=1"}),
	unserved(conformanceCase{name: "aliases", doc: "those without a name are numbered among themselves", run: func(e *env) string {
		letters(e)
		count := func(alias string) *pb.AggregationQuery_Aggregation {
			return &pb.AggregationQuery_Aggregation{Alias: alias, Operator: &pb.AggregationQuery_Aggregation_Count_{Count: new(pb.AggregationQuery_Aggregation_Count)}}
		}
		resp, err := e.raw.RunAggregationQuery(e.Context(), &pb.RunAggregationQueryRequest{ProjectId: e.project, QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
			AggregationQuery: &pb.AggregationQuery{QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: &pb.Query{Kind: kindP}},
				Aggregations: []*pb.AggregationQuery_Aggregation{count("x"), count(""), count("z"), count("")}}}})
		e.must(err)
		return showAll(resp.Batch.AggregationResults[0].AggregateProperties)
	}, want: "{property_1=9 property_2=9 x=9 z=9}"}),
	unserved(conformanceCase{name: "duplicate alias", doc: "aliases are different", run: aggregate(all.NewAggregationQuery().WithCount("n").WithSum("n", "n")), want: "InvalidArgument"}),
	unserved(conformanceCase{name: "six", doc: "a query has at most 5 aggregations",
		run:  aggregate(all.NewAggregationQuery().WithCount("a").WithCount("b").WithCount("c").WithCount("d").WithCount("e").WithCount("f")),
		want: "InvalidArgument", firestore: &difference{"Unknown", "the Firestore emulator fails without a code"}}),
}

var metadataCases = []conformanceCase{
	{name: "kinds", doc: "__kind__ has an entity for each kind", run: climb(datastore.NewQuery("__kind__")), want: "P Q Root", firestore: unknownKinds},
	{name: "kinds of a namespace", doc: "in that namespace", run: climb(datastore.NewQuery("__kind__").Namespace("elsewhere")), want: "P", firestore: unknownKinds},
	{name: "range of kinds", doc: "keys can be bounded",
		run:  climb(datastore.NewQuery("__kind__").FilterField("__key__", ">", datastore.NameKey("__kind__", "P", nil))),
		want: "Q Root", firestore: unknownKinds},
	{name: "namespaces", doc: "__namespace__ has one for each namespace; the empty one has the id 1", run: climb(datastore.NewQuery("__namespace__")), want: "1 elsewhere", firestore: unknownKinds},
	{name: "properties", doc: "__property__ has one for each indexed property of a kind",
		run:  ask(datastore.NewQuery("__property__").Ancestor(datastore.NameKey("__kind__", "P", nil))),
		want: "hidden home.rooms home.town m n s", firestore: &difference{"", unknownKinds.why}},
	{name: "write", doc: "reserved kinds can't be written", run: func(e *env) string {
		_, err := e.commit(upsert(e.name("__kind__", "x"), nil))
		return outcome(err)
	}, want: "InvalidArgument"},
}

var unknownKinds = &difference{"InvalidArgument", "the Firestore emulator has no metadata"}
