package query

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// Summary returns the plan of a query, with its indexes in production's notation. Production names
// an ancestor only as part of a composite index. Otherwise, an ancestor is a range of keys.
func (q *Query) Summary() *pb.PlanSummary {
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

// describeIndex returns an index in production's notation: (a ASC, __name__ ASC).
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
