package dsemu

import (
	"slices"
	"strconv"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// plans reports whether a request asks for the plan alone.
func plans(o *pb.ExplainOptions) bool { return o != nil && !o.Analyze }

// summary names the indexes that a query is served from, as production does.
func (q *query) summary() *pb.PlanSummary {
	summary := new(pb.PlanSummary)
	var seen []string
	for _, c := range q.anyOf {
		var parts []string
		keyed := false
		for _, o := range q.plan(c).definition {
			name, direction := o.property, "ASC"
			if name == keyProperty {
				name, keyed = "__name__", true
			}
			if o.descending {
				direction = "DESC"
			}
			parts = append(parts, name+" "+direction)
		}
		if !keyed {
			parts = append(parts, "__name__ ASC")
		}
		properties := "(" + strings.Join(parts, ", ") + ")"
		if slices.Contains(seen, properties) {
			continue
		}
		seen = append(seen, properties)
		summary.IndexesUsed = append(summary.IndexesUsed, &structpb.Struct{Fields: map[string]*structpb.Value{
			"query_scope": structpb.NewStringValue("Collection group"),
			"properties":  structpb.NewStringValue(properties),
		}})
	}
	return summary
}

// analyzed adds what running the query took.
func analyzed(plan *pb.PlanSummary, results, reads int64, took time.Duration) *pb.ExplainMetrics {
	return &pb.ExplainMetrics{
		PlanSummary: plan,
		ExecutionStats: &pb.ExecutionStats{
			ResultsReturned:   results,
			ExecutionDuration: durationpb.New(took),
			ReadOperations:    reads,
			DebugStats: &structpb.Struct{Fields: map[string]*structpb.Value{
				"documents_scanned": structpb.NewStringValue(strconv.FormatInt(results, 10)),
			}},
		},
	}
}
