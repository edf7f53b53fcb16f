package dsemu

import (
	"context"
	"fmt"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// RunAggregationQuery counts and adds up the results of a query.
func (s *Server) RunAggregationQuery(_ context.Context, req *pb.RunAggregationQueryRequest) (*pb.RunAggregationQueryResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	aggregation := req.GetAggregationQuery()
	switch {
	case req.GetGqlQuery() != nil:
		return nil, unimplemented("GQL")
	case aggregation.GetNestedQuery() == nil:
		return nil, invalid("the request has no query to aggregate")
	case req.ExplainOptions != nil:
		return nil, unimplemented("explain_options")
	}
	q, err := db.parse(req.PartitionId, aggregation.GetNestedQuery())
	if err != nil {
		return nil, err
	}
	tallies, err := newTallies(aggregation.Aggregations)
	if err != nil {
		return nil, err
	}
	resp, entries, err := db.aggregate(q, tallies, req.ReadOptions)
	if err != nil {
		return nil, err
	}
	s.meter.Aggregation(entries)
	return resp, nil
}

func (db *database) aggregate(q *query, tallies []*tally, o *pb.ReadOptions) (resp *pb.RunAggregationQueryResponse, entries int64, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	view, err := db.view(o, time.Now())
	if err != nil {
		return nil, 0, err
	}
	k := db.prepare(q)
	skip, last := q.offset, ""
	stopped := false
	q.scan(k, view.at, func(h hit) bool {
		if entries == int64(q.limit) || full(tallies) {
			stopped = true
			return false
		}
		last = h.sortKey
		if skip > 0 {
			skip--
			return true
		}
		entries++
		for _, t := range tallies {
			t.add(h.version)
		}
		return true
	})
	if view.tx != nil {
		seen := scanned{query: q}
		if stopped {
			seen.to = last
		}
		view.tx.queries = append(view.tx.queries, seen)
	}
	properties := make(map[string]*pb.Value)
	for _, t := range tallies {
		properties[t.alias] = t.result()
	}
	return &pb.RunAggregationQueryResponse{
		Batch: &pb.AggregationResultBatch{
			AggregationResults: []*pb.AggregationResult{{AggregateProperties: properties}},
			MoreResults:        pb.QueryResultBatch_NO_MORE_RESULTS,
			ReadTime:           microTime(view.at),
		},
		Transaction: view.begun,
	}, entries, nil
}

// A tally is one aggregation on its way.
type tally struct {
	alias    string
	property string // to add up; empty for a count
	upTo     int64  // of a count; 0 is no limit

	n        int64
	sum      float64
	integers int64
	isDouble bool // a double was added, or the integers overflowed
}

const maxAggregations = 5

func newTallies(aggregations []*pb.AggregationQuery_Aggregation) ([]*tally, error) {
	if n := len(aggregations); n == 0 || n > maxAggregations {
		return nil, invalid("an aggregation query has 1 to %d aggregations, this one has %d", maxAggregations, n)
	}
	var tallies []*tally
	aliases := make(map[string]bool)
	for i, a := range aggregations {
		t := &tally{alias: a.Alias}
		if t.alias == "" {
			t.alias = fmt.Sprintf("property_%d", i+1)
		}
		if aliases[t.alias] {
			return nil, invalid("two aggregations have the alias %q", t.alias)
		}
		aliases[t.alias] = true
		switch op := a.Operator.(type) {
		case *pb.AggregationQuery_Aggregation_Count_:
			if op.Count.GetUpTo() != nil {
				if t.upTo = op.Count.UpTo.Value; t.upTo <= 0 {
					return nil, invalid("up_to of the count %q has to be positive, it is %d", t.alias, t.upTo)
				}
			}
		case *pb.AggregationQuery_Aggregation_Sum_:
			if t.property = op.Sum.GetProperty().GetName(); t.property == "" {
				return nil, invalid("the sum %q names no property", t.alias)
			}
		default:
			return nil, unimplemented("aggregations other than COUNT and SUM")
		}
		tallies = append(tallies, t)
	}
	return tallies, nil
}

// full reports whether nothing more can change any tally.
func full(tallies []*tally) bool {
	for _, t := range tallies {
		if t.upTo == 0 || t.n < t.upTo {
			return false
		}
	}
	return true
}

func (t *tally) add(v version) {
	if t.property == "" {
		if t.upTo == 0 || t.n < t.upTo {
			t.n++
		}
		return
	}
	switch value := v.properties()[t.property].GetValueType().(type) {
	case *pb.Value_IntegerValue:
		t.sum += float64(value.IntegerValue)
		if sum := t.integers + value.IntegerValue; (sum > t.integers) == (value.IntegerValue > 0) {
			t.integers = sum
		} else {
			t.isDouble = true
		}
	case *pb.Value_DoubleValue:
		t.sum += value.DoubleValue
		t.isDouble = true
	}
}

func (t *tally) result() *pb.Value {
	switch {
	case t.property == "":
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: t.n}}
	case t.isDouble:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: t.sum}}
	default:
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: t.integers}}
	}
}
