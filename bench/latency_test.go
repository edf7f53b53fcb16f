package bench

import (
	"context"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
)

// The times of calls in virtual time. The results of a query come in batches of 300, and each batch
// is a call. The times of queries, commits and dispatches are requirements of this project. A
// lookup takes as long as a query, and every other call takes a round trip.
const (
	perQuery    = 20 * time.Millisecond
	perEntity   = 40 * time.Microsecond
	perKey      = 5 * time.Microsecond
	perCommit   = 30 * time.Millisecond
	perCall     = 5 * time.Millisecond
	perDispatch = 50 * time.Millisecond
	batch       = 300
)

// A network delays calls and deliveries. It does so only while on is set.
type network struct {
	on       *atomic.Bool
	dispatch time.Duration

	// call carries out a call, and waits for as long as the call takes.
	call func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error)
}

// usualNetwork returns the network of a cloud, with any number of calls at a time.
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
	case *datastorepb.RunAggregationQueryResponse: // the server reads the index entry of every entity that it counts
		return perQuery + time.Duration(counted(r))*perKey
	case *datastorepb.CommitResponse:
		return perCommit
	}
	return perCall
}

// counted returns the count in the answer to an aggregation query.
func counted(resp *datastorepb.RunAggregationQueryResponse) (n int64) {
	for _, r := range resp.GetBatch().GetAggregationResults() {
		for _, v := range r.GetAggregateProperties() {
			n += v.GetIntegerValue()
		}
	}
	return n
}

// ideal returns the shortest possible time of a job: all workers are always busy, and only the
// function, and one query and one commit for each full page, take time.
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
