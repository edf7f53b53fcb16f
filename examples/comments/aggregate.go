package main

import (
	"context"
	"fmt"
	"math"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// aggregate answers an aggregation query: it counts comments, or adds up their values. If possible,
// each shard aggregates its own comments, and the results are combined. For averages, and for
// queries with a limit, an offset or a cursor, that is not possible. In that case aggregate reads
// the comments.
func (r *router) aggregate(ctx context.Context, req *pb.RunAggregationQueryRequest) (*pb.RunAggregationQueryResponse,
	error) {
	comments, err := ofTable(req.PartitionId, req.GetAggregationQuery().GetNestedQuery())
	if err != nil {
		return nil, err
	}
	return reading(ctx, r, req.ReadOptions, func(v *view) (*pb.RunAggregationQueryResponse, error) {
		if comments {
			return v.aggregate(ctx, req)
		}
		other := proto.Clone(req).(*pb.RunAggregationQueryRequest)
		if other.ReadOptions, err = v.passed(ctx, req.ReadOptions); err != nil {
			return nil, err
		}
		resp, err := r.databases[0].api().RunAggregationQuery(ctx, other)
		if err == nil && v.tx != nil {
			resp.Transaction = v.begun
		}
		return resp, err
	})
}

func (v *view) aggregate(ctx context.Context, req *pb.RunAggregationQueryRequest) (*pb.RunAggregationQueryResponse,
	error) {
	aq := req.GetAggregationQuery()
	if req.ExplainOptions != nil {
		return nil, errExplain
	}
	s, err := v.search(ctx, aq.GetNestedQuery())
	if err != nil {
		return nil, err
	}
	sums := newSums(aq.Aggregations)
	if sums.apart(aq) {
		err = sums.ask(ctx, s, aq)
	} else {
		err = sums.read(ctx, v, aq.GetNestedQuery())
	}
	if err != nil {
		return nil, err
	}
	return &pb.RunAggregationQueryResponse{Transaction: v.begun, Batch: &pb.AggregationResultBatch{
		AggregationResults: []*pb.AggregationResult{{AggregateProperties: sums.results()}},
		MoreResults:        pb.QueryResultBatch_NO_MORE_RESULTS}}, nil
}

// sums are the results of the aggregations in a query, combined over all shards.
type sums struct {
	parts []*sum
}

type sum struct {
	name     string
	asked    *pb.AggregationQuery_Aggregation
	whole    int64
	real     float64
	isReal   bool
	n        int64 // number of comments, or of numbers that were added
	property string
}

func newSums(asked []*pb.AggregationQuery_Aggregation) *sums {
	all := new(sums)
	for i, a := range asked {
		s := &sum{name: a.Alias, asked: a}
		if s.name == "" {
			s.name = fmt.Sprintf("property_%d", i+1)
		}
		switch {
		case a.GetSum() != nil:
			s.property = a.GetSum().Property.GetName()
		case a.GetAvg() != nil:
			s.property = a.GetAvg().Property.GetName()
		}
		all.parts = append(all.parts, s)
	}
	return all
}

func (s *sum) isCount() bool {
	_, count := s.asked.Operator.(*pb.AggregationQuery_Aggregation_Count_)
	return count
}

// apart reports whether the results of the shards can be combined if each shard aggregates only its
// own comments.
func (all *sums) apart(aq *pb.AggregationQuery) bool {
	for _, s := range all.parts {
		if s.asked.GetAvg() != nil {
			return false
		}
	}
	q := aq.GetNestedQuery()
	return q.Limit == nil && q.Offset == 0 && len(q.DistinctOn) == 0 && len(q.StartCursor) == 0 && len(q.EndCursor) == 0
}

// ask lets each shard of the search s aggregate its own comments, and combines the results.
func (all *sums) ask(ctx context.Context, s *search, aq *pb.AggregationQuery) error {
	answers := make([]map[string]*pb.Value, len(s.streams))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i, st := range s.streams {
		group.Go(func() error {
			q := proto.Clone(st.query).(*pb.Query)
			q.Projection = aq.GetNestedQuery().Projection
			resp, err := read(ctx, func() (*pb.RunAggregationQueryResponse, error) {
				return st.session.db.api().RunAggregationQuery(ctx,
					&pb.RunAggregationQueryRequest{ProjectId: st.session.db.project,
						DatabaseId: st.session.db.name, ReadOptions: st.session.options(),
						QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
							AggregationQuery: &pb.AggregationQuery{
								QueryType:    &pb.AggregationQuery_NestedQuery{NestedQuery: q},
								Aggregations: aq.Aggregations}}})
			})
			if err != nil {
				return st.session.hint(err)
			}
			for _, a := range resp.Batch.GetAggregationResults() {
				answers[i] = a.AggregateProperties
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, answer := range answers {
		for _, s := range all.parts {
			if s.isCount() {
				s.n += answer[s.name].GetIntegerValue()
			} else {
				s.add(answer[s.name])
			}
		}
	}
	return nil
}

// read reads the comments of all shards that match the query q, and aggregates them.
func (all *sums) read(ctx context.Context, v *view, q *pb.Query) error {
	wanted := make(map[string]bool)
	for _, s := range all.parts {
		if s.property != "" {
			wanted[s.property] = true
		}
	}
	if len(wanted) > 0 && len(q.Projection) > 0 {
		return status.Error(codes.InvalidArgument,
			"the store adds up what whole comments have: leave the projection out")
	}
	q = proto.Clone(q).(*pb.Query)
	for {
		s, err := v.search(ctx, q)
		if err != nil {
			return err
		}
		batch, err := s.batch(ctx)
		if err != nil {
			return err
		}
		for _, result := range batch.EntityResults {
			if err := all.addEntity(result.Entity, wanted); err != nil {
				return err
			}
		}
		if batch.MoreResults != pb.QueryResultBatch_NOT_FINISHED {
			return nil
		}
		q.StartCursor, q.Offset = batch.EndCursor, q.Offset-batch.SkippedResults
		if q.Limit != nil {
			q.Limit = wrapperspb.Int32(q.Limit.Value - int32(len(batch.EntityResults)))
		}
	}
}

// addEntity adds a comment to the sums. The map wanted has the properties that the query
// aggregates. Like Datastore, whose index of these properties lacks such a comment, addEntity
// ignores a comment that lacks one of them.
func (all *sums) addEntity(e *pb.Entity, wanted map[string]bool) error {
	for name := range wanted {
		v := e.Properties[name]
		if v == nil || v.ExcludeFromIndexes {
			return nil
		}
		if v.GetArrayValue() != nil {
			return status.Errorf(codes.InvalidArgument, "%v has several values of %s: the store adds up single ones",
				clientKey(e.Key), name)
		}
	}
	for _, s := range all.parts {
		if s.property == "" {
			s.n++
		} else {
			s.add(e.Properties[s.property])
		}
	}
	return nil
}

// add adds a number to the sum. The sum of integers becomes a float if it exceeds 64 bits.
func (s *sum) add(v *pb.Value) {
	switch n := v.GetValueType().(type) {
	case *pb.Value_IntegerValue:
		s.n++
		s.real += float64(n.IntegerValue)
		if whole := s.whole + n.IntegerValue; (whole > s.whole) == (n.IntegerValue > 0) {
			s.whole = whole
		} else {
			s.isReal = true
		}
	case *pb.Value_DoubleValue:
		s.n++
		s.real += n.DoubleValue
		s.isReal = true
	}
}

// results returns the results of all aggregations, by name.
func (all *sums) results() map[string]*pb.Value {
	results := make(map[string]*pb.Value)
	for _, s := range all.parts {
		v := &pb.Value{}
		switch {
		case s.isCount():
			most := int64(math.MaxInt64)
			if upTo := s.asked.GetCount().GetUpTo(); upTo != nil {
				most = upTo.Value
			}
			v.ValueType = &pb.Value_IntegerValue{IntegerValue: min(s.n, most)}
		case s.asked.GetAvg() != nil && s.n == 0:
			v.ValueType = &pb.Value_NullValue{}
		case s.asked.GetAvg() != nil:
			v.ValueType = &pb.Value_DoubleValue{DoubleValue: s.real / float64(s.n)}
		case s.isReal:
			v.ValueType = &pb.Value_DoubleValue{DoubleValue: s.real}
		default:
			v.ValueType = &pb.Value_IntegerValue{IntegerValue: s.whole}
		}
		results[s.name] = v
	}
	return results
}
