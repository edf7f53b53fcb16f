package dsemu

import (
	"context"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/query"
)

// aggregate runs a query, and returns the results of its aggregations, such as COUNT. It also
// returns the number of index entries that it read.
func (db *database) aggregate(
	ctx context.Context, q *query.Query, tallies []*query.Tally, o *pb.ReadOptions,
) (resp *pb.RunAggregationQueryResponse, entries int64, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	release, err := db.prepare(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	defer release()
	view, err := db.view(o, time.Now())
	if err != nil {
		return nil, 0, err
	}
	defer db.scan(view.at)()
	seen := view.remember(q)
	skip, last := q.Offset, ""
	stopped := false
	db.scanRows(q, view.at, func(r query.Row) bool {
		if entries == int64(q.Limit) || query.Full(tallies) {
			stopped = true
			return false
		}
		last = r.SortKey
		if skip > 0 {
			skip--
			return true
		}
		entries++
		for _, t := range tallies {
			t.Add(r.Values)
		}
		return true
	})
	if stopped {
		seen.stop(last)
	}
	properties := make(map[string]*pb.Value)
	for _, t := range tallies {
		properties[t.Alias] = t.Result()
	}
	return &pb.RunAggregationQueryResponse{
		Batch: &pb.AggregationResultBatch{
			AggregationResults: []*pb.AggregationResult{{AggregateProperties: properties}},
			MoreResults:        pb.QueryResultBatch_NO_MORE_RESULTS,
			ReadTime:           entity.Time(view.at),
		},
		Transaction: view.begun,
	}, entries, nil
}
