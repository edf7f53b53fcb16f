package bench

import (
	"context"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
)

// What calls take. A query's results come in batches of 300, each a call of its own.
// The issue that these come from names queries, commits and dispatches; a lookup takes
// what a query takes, and every other call a round trip.
const (
	perQuery    = 20 * time.Millisecond
	perEntity   = 40 * time.Microsecond
	perKey      = 5 * time.Microsecond
	perCommit   = 30 * time.Millisecond
	perCall     = 5 * time.Millisecond
	perDispatch = 50 * time.Millisecond
	batch       = 300
)

// A network delays calls, and deliveries on their way, while it is on.
type network struct {
	on       *atomic.Bool
	dispatch time.Duration

	// call makes a call of a service, and takes its time.
	call func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error)
}

// usualNetwork is that of a cloud: any number of calls at a time.
func usualNetwork() network {
	return network{new(atomic.Bool), perDispatch, func(ctx context.Context, req any, handler grpc.UnaryHandler) (any,
		error) {
		resp, err := handler(ctx, req)
		time.Sleep(latency(resp))
		return resp, err
	}}
}

func (n network) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if !n.on.Load() {
		return handler(ctx, req)
	}
	return n.call(ctx, req, handler)
}

func latency(resp any) time.Duration {
	switch r := resp.(type) {
	case *datastorepb.RunQueryResponse:
		b := r.GetBatch()
		each := perEntity
		if b.GetEntityResultType() == datastorepb.EntityResult_KEY_ONLY {
			each = perKey
		}
		return perQuery + time.Duration(len(b.GetEntityResults())+int(b.GetSkippedResults()))*each
	case *datastorepb.LookupResponse:
		return perQuery + time.Duration(len(r.GetFound()))*perEntity
	case *datastorepb.RunAggregationQueryResponse: // it passes what it counts
		return perQuery + time.Duration(counted(r))*perKey
	case *datastorepb.CommitResponse:
		return perCommit
	}
	return perCall
}

// counted returns what an aggregation has counted.
func counted(resp *datastorepb.RunAggregationQueryResponse) (n int64) {
	for _, r := range resp.GetBatch().GetAggregationResults() {
		for _, v := range r.GetAggregateProperties() {
			n += v.GetIntegerValue()
		}
	}
	return n
}

// ideal is how long a job would take if nothing but the function, a query and a commit
// for each full page took time, and all workers were always busy.
func ideal(costs []time.Duration, page, workers int) time.Duration {
	var sum, dearest time.Duration
	for _, c := range costs {
		sum += c
		dearest = max(dearest, c)
	}
	batches := (page + batch - 1) / batch
	perPage := time.Duration(batches)*perQuery + time.Duration(page)*perEntity + perCommit
	sum += time.Duration(len(costs)) * perPage / time.Duration(page)
	return max(sum/time.Duration(workers), dearest) + perDispatch
}
