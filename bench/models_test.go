package bench

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// A model simulates, in virtual time, a Datastore emulator on a machine with two processors. Its
// calls take about as long as measured, and at most two run at once.
type model struct {
	name    string
	options emulator.Options

	uncounted bool // whether it has no aggregation queries
	unsampled bool // whether no entity has __scatter__, the property for samples of keys

	call     time.Duration // the time of any call
	query    time.Duration // a query of accounts: for each 1,000 accounts that exist, not only those that it returns
	key      time.Duration // for each key that a query returns
	passed   time.Duration // for each key that is skipped by a query's offset, or counted
	read     time.Duration // for each entity that is looked up
	write    time.Duration // for each mutation
	dispatch time.Duration
}

// models are the emulators of Datastore that a machine can run. One is the embedded emulator
// without aggregation queries.
var models = []model{{
	name: "embedded",
	call: 200 * time.Microsecond, key: 1500 * time.Nanosecond, passed: 80 * time.Nanosecond,
	read: 8 * time.Microsecond, write: 13 * time.Microsecond, dispatch: time.Millisecond,
}, {
	name: "uncounted", uncounted: true,
	call: 200 * time.Microsecond, key: 1500 * time.Nanosecond, passed: 80 * time.Nanosecond,
	read: 8 * time.Microsecond, write: 13 * time.Microsecond, dispatch: time.Millisecond,
}, {
	name: "classic", uncounted: true, options: emulator.Options{ScatterOneIn: 2},
	call: time.Millisecond, query: 5 * time.Millisecond, key: 500 * time.Microsecond, passed: 500 * time.Microsecond,
	read: 40 * time.Microsecond, write: 60 * time.Microsecond, dispatch: time.Millisecond,
}, {
	name: "firestore", unsampled: true, options: emulator.Options{QueryBatchSize: 10_000},
	call: 2 * time.Millisecond, query: 15 * time.Millisecond, key: 80 * time.Microsecond, passed: 15 * time.Microsecond,
	read: 60 * time.Microsecond, write: 100 * time.Microsecond, dispatch: time.Millisecond,
}}

// network returns the delays of calls for a model whose database has the given number of entities.
func (m model) network(entities int) network {
	processors := semaphore.NewWeighted(2)
	return network{new(atomic.Bool), m.dispatch,
		func(ctx context.Context, req any, handler grpc.UnaryHandler) (resp any, err error) {
			takes := m.call
			switch r := req.(type) {
			case *datastorepb.RunAggregationQueryRequest:
				if m.uncounted {
					err = status.Error(codes.Unimplemented, "aggregations are not implemented")
				} else if ofAccounts(r.GetAggregationQuery().GetNestedQuery()) {
					takes += m.query * time.Duration(entities) / 1000
				}
			case *datastorepb.RunQueryRequest:
				if ofAccounts(r.GetQuery()) {
					takes += m.query * time.Duration(entities) / 1000
				}
			}
			if err == nil {
				resp, err = handler(ctx, req)
			}
			switch r := resp.(type) {
			case *datastorepb.RunQueryResponse:
				if m.unsampled && sampled(req.(*datastorepb.RunQueryRequest).GetQuery()) {
					r.Batch.EntityResults, r.Batch.MoreResults = nil, datastorepb.QueryResultBatch_NO_MORE_RESULTS
					break
				}
				takes += m.key*time.Duration(len(r.GetBatch().GetEntityResults())) + m.passed*time.Duration(
					r.GetBatch().GetSkippedResults())
			case *datastorepb.RunAggregationQueryResponse:
				takes += m.passed * time.Duration(counted(r))
			case *datastorepb.LookupResponse:
				takes += m.read * time.Duration(len(r.GetFound()))
			case *datastorepb.CommitResponse:
				takes += m.write * time.Duration(len(r.GetMutationResults()))
			}
			if processors.Acquire(ctx, 1) == nil {
				time.Sleep(takes)
				processors.Release(1)
			}
			return resp, err
		}}
}

func ofAccounts(q *datastorepb.Query) bool {
	return slices.ContainsFunc(q.GetKind(), func(k *datastorepb.KindExpression) bool { return k.Name == accounts })
}
