package dsemu

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

func (db *database) parseGQL(g *pb.GqlQuery, p *pb.PartitionId) (*pb.Query, error) {
	return nil, unimplemented("GQL")
}

func (db *database) parseAggregationGQL(g *pb.GqlQuery, p *pb.PartitionId) (*pb.AggregationQuery, error) {
	return nil, unimplemented("GQL")
}
