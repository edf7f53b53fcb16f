package dsemu

import (
	"slices"
	"strconv"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// plans reports whether a request asks for the plan alone.
func plans(o *pb.ExplainOptions) bool { return o != nil && !o.Analyze }

// summary names the indexes that a query is served from, as production does. An
// ancestor is part of an index only if that is a composite one: otherwise it is a
// range of keys.
func (q *query) summary() *pb.PlanSummary {
	summary := new(pb.PlanSummary)
	var seen []string
	for _, x := range q.indexes {
		scope := "Collection group"
		if x.Ancestor {
			scope = "Includes ancestors"
		}
		properties := describeIndex(x)
		if slices.Contains(seen, scope+properties) {
			continue
		}
		seen = append(seen, scope+properties)
		summary.IndexesUsed = append(summary.IndexesUsed, &structpb.Struct{Fields: map[string]*structpb.Value{
			"query_scope": structpb.NewStringValue(scope),
			"properties":  structpb.NewStringValue(properties),
		}})
	}
	return summary
}

// describeIndex writes an index with the keys that it ends with: as (a ASC, __name__ ASC).
func describeIndex(x indexes.Index) string {
	properties := x.Properties
	if !slices.ContainsFunc(properties, func(p indexes.Property) bool { return p.Name == model.KeyProperty }) {
		properties = append(slices.Clip(properties), indexes.Property{Name: model.KeyProperty})
	}
	var parts []string
	for _, p := range properties {
		name, direction := p.Name, "ASC"
		if name == model.KeyProperty {
			name = "__name__"
		}
		if p.Descending {
			direction = "DESC"
		}
		parts = append(parts, name+" "+direction)
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// A cost is what it took to run a query.
type cost struct {
	results    int64
	reads      int64 // that are billed
	small      int64 // operations that are
	documents  int64 // that were read
	scanned    int64 // entries of indexes
	aggregated int64 // of them, those that are billed because they were aggregated
}

// metrics adds a cost to a plan.
func (c cost) metrics(plan *pb.PlanSummary, took time.Duration) *pb.ExplainMetrics {
	count := func(n int64) *structpb.Value { return structpb.NewStringValue(strconv.FormatInt(n, 10)) }
	var least int64 // what is billed for a query that reads nothing
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
