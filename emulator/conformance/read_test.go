package conformance

import (
	"fmt"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// readCases are about property masks of reads, query plans and statistics.
var readCases = []conformanceCase{
	{name: "lookup with a mask", doc: "returns the properties that it names", run: func(e *env) string {
		e.put("K", "a", "x", 1, "y", 2, "in", value(props("p", 1, "q", 2)))
		resp, err := e.raw.Lookup(e.Context(),
			&pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("K", "a")},
				PropertyMask: &pb.PropertyMask{Paths: []string{"x", "in.p", "none"}}})
		e.must(err)
		return showAll(resp.Found[0].Entity.Properties)
	}, want: "{in={p=1} x=1}", classic: &difference{"{in={p=1 q=2} x=1 y=2}", ignoresReadMasks}},
	{name: "lookup of the same key", doc: "returns each entity once", run: func(e *env) string {
		e.put("K", "a")
		a, b := e.name("K", "a"), e.name("K", "b")
		resp, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{a, b, a, b}})
		e.must(err)
		return fmt.Sprint(len(resp.Found), " found, ", len(resp.Missing), " missing")
	}, want: "1 found, 1 missing",
		classic: &difference{"2 found, 2 missing", "the classic emulator returns an entity for each key"}},
	{name: "query with a mask", doc: "returns the properties that it names", run: func(e *env) string {
		e.put("P", "a", "x", 1, "y", 2)
		resp, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project,
				QueryType:    &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}},
				PropertyMask: &pb.PropertyMask{Paths: []string{"y"}}})
		e.must(err)
		return showAll(resp.Batch.EntityResults[0].Entity.Properties)
	}, want: "{y=2}", classic: &difference{"{x=1 y=2}", ignoresReadMasks}},
	{name: "projection with a mask", doc: "a projection has none", run: func(e *env) string {
		e.put("P", "a", "x", 1, "y", 2)
		_, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project, PropertyMask: &pb.PropertyMask{Paths: []string{"y"}},
				QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP,
					Projection: []*pb.Projection{{Property: &pb.PropertyReference{Name: "x"}}}}}})
		return outcome(err)
	}, want: "InvalidArgument", classic: &difference{"OK", ignoresReadMasks}},
	{name: "time in nanoseconds", doc: "a read time has the precision of microseconds", run: func(e *env) string {
		e.put("P", "a")
		at := atTime(time.Now())
		at.GetReadTime().Nanos++
		_, err := e.lookup(at, "P", "a")
		_, err2 := e.raw.RunQuery(e.Context(), &pb.RunQueryRequest{ProjectId: e.project, ReadOptions: at,
			QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
		return outcome(err) + " " + outcome(err2)
	}, want: "InvalidArgument InvalidArgument"},
	{name: "plan", doc: "explain without analyze returns the plan, and no results", run: func(e *env) string {
		letters(e)
		resp, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project, ExplainOptions: new(pb.ExplainOptions),
				QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
		e.must(err)
		return fmt.Sprint(len(resp.GetExplainMetrics().GetPlanSummary().GetIndexesUsed()), " indexes, ",
			len(resp.GetBatch().GetEntityResults()), " results")
	}, want: "1 indexes, 0 results", classic: unexplained, firestore: unexplained},
	{name: "analysis", doc: "explain with analyze returns the plan, the results, and what they took",
		run: func(e *env) string {
			letters(e)
			resp, err := e.raw.RunQuery(e.Context(),
				&pb.RunQueryRequest{ProjectId: e.project, ExplainOptions: &pb.ExplainOptions{Analyze: true},
					QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
			e.must(err)
			stats := resp.GetExplainMetrics().GetExecutionStats()
			return fmt.Sprint(len(resp.GetBatch().GetEntityResults()), " results, ", stats.GetResultsReturned(),
				" returned, ", stats.GetReadOperations(), " reads")
		}, want: "9 results, 9 returned, 9 reads", classic: unexplained, firestore: unexplained},
	{name: "statistics", doc: "__Stat_Kind__ has an entity for each kind", run: func(e *env) string {
		letters(e)
		resp, err := e.runQuery(&pb.Query{Kind: []*pb.KindExpression{{Name: "__Stat_Kind__"}}})
		e.must(err)
		if len(resp.Batch.EntityResults) == 0 {
			return "none"
		}
		properties := resp.Batch.EntityResults[0].Entity.Properties
		return names(resp) + " " + show(properties["count"]) + " " + show(properties["kind_name"])
	}, want: `P 9 "P"`, classic: &difference{"*", "the classic emulator makes its statistics at other times"},
		firestore: &difference{"*", "the Firestore emulator has no statistics"}},
	{name: "statistic by key", doc: "can be looked up", run: func(e *env) string {
		letters(e)
		resp, err := e.raw.Lookup(e.Context(),
			&pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("__Stat_Total__", "total_entity_usage")}})
		e.must(err)
		if len(resp.Found) == 0 {
			return "none"
		}
		return show(resp.Found[0].Entity.Properties["count"])
	}, want: "9", classic: &difference{"*", "the classic emulator makes its statistics at other times"},
		firestore: &difference{"*", "the Firestore emulator has no statistics"}},
}

const ignoresReadMasks = "the classic emulator ignores the masks of reads"

var unexplained = &difference{"*", "Google's emulators do not explain"}
