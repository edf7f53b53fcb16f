package dsemu

import (
	"strconv"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// plans reports whether a request wants only the plan of the query, and no results.
func plans(o *pb.ExplainOptions) bool { return o != nil && !o.Analyze }

// A cost counts what a query has read and returned, and what Datastore would bill for it.
type cost struct {
	results    int64
	reads      int64 // billed reads
	small      int64 // billed small operations
	documents  int64 // documents that were read
	scanned    int64 // index entries that were read
	aggregated int64 // the index entries among scanned that are billed, because an aggregation read them
}

// metrics returns the metrics of a query: its plan and its cost.
func (c cost) metrics(plan *pb.PlanSummary, took time.Duration) *pb.ExplainMetrics {
	count := func(n int64) *structpb.Value { return structpb.NewStringValue(strconv.FormatInt(n, 10)) }
	var least int64 // bill of a query that reads nothing
	if c.documents+c.aggregated == 0 {
		least = c.reads
	}
	return &pb.ExplainMetrics{
		PlanSummary: plan,
		ExecutionStats: &pb.ExecutionStats{
			ResultsReturned:   c.results,
			ExecutionDuration: durationpb.New(took),
			ReadOperations:    c.reads,
			DebugStats: &structpb.Struct{Fields: map[string]*structpb.Value{
				"documents_scanned":     count(c.documents),
				"index_entries_scanned": count(c.scanned),
				"billing_details": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
					"documents_billable":     count(c.documents),
					"index_entries_billable": count(c.aggregated),
					"small_ops":              count(c.small),
					"min_query_cost":         count(least),
				}}),
			}},
		},
	}
}
