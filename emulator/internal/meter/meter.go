// Package meter counts the operations for which Google would send a bill.
package meter

import (
	"context"
	"maps"
	"path"
	"sync"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/billing"
)

// A Meter adds up operations that are billed. The zero value is ready to use.
type Meter struct {
	mu    sync.Mutex
	usage billing.Usage
}

// Usage returns the operations that were counted so far.
func (m *Meter) Usage() billing.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usage
	u.RPCs = maps.Clone(u.RPCs)
	return u
}

func (m *Meter) add(f func(u *billing.Usage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.usage)
}

func (m *Meter) rpc(fullMethod string) {
	m.add(func(u *billing.Usage) {
		if u.RPCs == nil {
			u.RPCs = make(map[string]int64)
		}
		u.RPCs[path.Base(fullMethod)]++
	})
}

// Lookup counts the operations of a successful Lookup.
func (m *Meter) Lookup(resp *pb.LookupResponse) {
	m.add(func(u *billing.Usage) { u.Reads += int64(len(resp.Found) + len(resp.Missing)) })
}

// RunQuery counts the operations of a successful RunQuery, and returns how many reads and small
// operations are billed for it. If a client reads a query in several batches, each batch is a call
// of its own.
//
// Results that come only from an index are billed as small operations: keys, and projections. A
// projection with distinct-on, for which the caller sets distinct, is billed as reads.
func (m *Meter) RunQuery(resp *pb.RunQueryResponse, distinct bool) (reads, small int64) {
	batch := resp.GetBatch()
	n := int64(len(batch.GetEntityResults()))
	reads = max(1, n+int64(batch.GetSkippedResults()))
	if t := batch.GetEntityResultType(); t == pb.EntityResult_KEY_ONLY || t == pb.EntityResult_PROJECTION && !distinct {
		reads, small = 1, n
	}
	m.add(func(u *billing.Usage) {
		u.Reads += reads
		u.SmallOps += small
	})
	return reads, small
}

// Aggregation counts the operations of a successful aggregation that has read a number of index
// entries. It returns the number of billed reads.
func (m *Meter) Aggregation(entries int64) int64 {
	reads := max(1, (entries+999)/1000)
	m.add(func(u *billing.Usage) { u.Reads += reads })
	return reads
}

// AllocateIds counts the operations of a successful AllocateIds for n keys.
func (m *Meter) AllocateIds(n int) {
	m.add(func(u *billing.Usage) { u.SmallOps += int64(n) })
}

// Commit counts the operations of a successful Commit.
func (m *Meter) Commit(req *pb.CommitRequest) {
	m.add(func(u *billing.Usage) {
		for _, mut := range req.Mutations {
			if mut.GetDelete() != nil {
				u.Deletes++
			} else {
				u.Writes++
			}
		}
	})
}

// Task counts a Cloud Tasks operation with a task of size bytes. Operations without a task have the
// size 0.
func (m *Meter) Task(size int) {
	const piece = 32 << 10
	m.add(func(u *billing.Usage) { u.TaskOps += max(1, int64(size+piece-1)/piece) })
}

// UnaryServerInterceptor returns an interceptor that counts the number of calls of a server. The
// server itself counts the billed operations, because it knows how much it has read.
func (m *Meter) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		m.rpc(info.FullMethod)
		return handler(ctx, req)
	}
}

// UnaryClientInterceptor returns an interceptor that counts a client's operations, for servers
// without a meter. An aggregation without a COUNT counts as one read, because its answer does not
// show how much the server has read.
func (m *Meter) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		m.rpc(method)
		if err := invoker(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
		switch reply := reply.(type) {
		case *pb.LookupResponse:
			m.Lookup(reply)
		case *pb.RunQueryResponse:
			m.RunQuery(reply, len(req.(*pb.RunQueryRequest).GetQuery().GetDistinctOn()) > 0)
		case *pb.RunAggregationQueryResponse:
			m.Aggregation(counted(req.(*pb.RunAggregationQueryRequest), reply))
		case *pb.AllocateIdsResponse:
			m.AllocateIds(len(reply.Keys))
		case *pb.CommitResponse:
			m.Commit(req.(*pb.CommitRequest))
		}
		return nil
	}
}

// counted returns the result of the request's first COUNT, or 0 if there is none.
func counted(req *pb.RunAggregationQueryRequest, resp *pb.RunAggregationQueryResponse) int64 {
	for _, a := range req.GetAggregationQuery().GetAggregations() {
		if a.GetCount() == nil {
			continue
		}
		for _, r := range resp.GetBatch().GetAggregationResults() {
			return r.GetAggregateProperties()[a.Alias].GetIntegerValue()
		}
	}
	return 0
}
