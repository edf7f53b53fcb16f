package dsemu

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/internal/gql"
)

// parseGQL parses a GQL string, and returns its query.
func (db *database) parseGQL(g *pb.GqlQuery, p *pb.PartitionId) (*pb.Query, error) {
	s, err := db.statement(g, p)
	switch {
	case err != nil:
		return nil, err
	case s.Aggregations != nil:
		return nil, model.Invalid("the GQL query aggregates: that is for RunAggregationQuery")
	}
	return s.Query, nil
}

// parseAggregationGQL parses a GQL string with an aggregation.
func (db *database) parseAggregationGQL(g *pb.GqlQuery, p *pb.PartitionId) (*pb.AggregationQuery, error) {
	s, err := db.statement(g, p)
	switch {
	case err != nil:
		return nil, err
	case s.Aggregations == nil:
		return nil, model.Invalid("the GQL query does not aggregate: that is for RunQuery")
	}
	return &pb.AggregationQuery{QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: s.Query},
		Aggregations: s.Aggregations}, nil
}

func (db *database) statement(g *pb.GqlQuery, p *pb.PartitionId) (*gql.Statement, error) {
	partition, err := db.Partition(p)
	if err != nil {
		return nil, err
	}
	s, err := gql.Parse(g, partition)
	if err != nil {
		return nil, model.Invalid("%v", err)
	}
	return s, nil
}
