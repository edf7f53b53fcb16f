package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// guestServers is the number of servers of the Datastore of BenchmarkGuest.
const guestServers = 50

// perWrite is how long a server is busy with one entity of a commit. The pages of BenchmarkGuest
// have 20 entities: their commits take as long as commits of 500 entities at 0.6 ms each.
const perWrite = 15 * time.Millisecond

// A busy is a Datastore that becomes slow under load. It has a number of servers, each with one
// call at a time, and a queue of calls, first come, first served. How long a server is busy with a
// call is log-normal, as latencies of services are: the 99th percentile is five times the median.
type busy struct {
	servers *semaphore.Weighted
	vary    emulator.Latency

	mu   sync.Mutex
	rng  *rand.Rand
	busy time.Duration // sum of all servers, with the calls of the job
}

func newBusy() *busy {
	return &busy{servers: semaphore.NewWeighted(guestServers), rng: rand.New(rand.NewPCG(1, 2)),
		vary: emulator.LogNormal{Median: time.Second, P99: 5 * time.Second}}
}

func (b *busy) network() network {
	return network{new(atomic.Bool), perDispatch, func(ctx context.Context, req any, handler grpc.UnaryHandler) (any,
		error) {
		resp, err := handler(ctx, req)
		usual := latency(resp)
		if r, ok := resp.(*datastorepb.CommitResponse); ok {
			usual += time.Duration(len(r.GetMutationResults())) * perWrite
		}
		took := b.serve(ctx, usual)
		b.mu.Lock()
		b.busy += took
		b.mu.Unlock()
		return resp, err
	}}
}

// serve occupies a server for a call, and returns the time that this took.
func (b *busy) serve(ctx context.Context, usual time.Duration) time.Duration {
	b.mu.Lock()
	takes := time.Duration(b.vary.Draw(b.rng).Seconds() * float64(usual))
	b.mu.Unlock()
	if b.servers.Acquire(ctx, 1) != nil {
		return 0 // the caller has gone
	}
	time.Sleep(takes)
	b.servers.Release(1)
	return takes
}

// A foreground makes lookups at random times, at a constant mean rate.
type foreground struct {
	served time.Duration
	took   []time.Duration
}

// run makes lookups for a time. Their load is a share of the servers' time.
func (b *busy) run(load float64, seed uint64, lasts time.Duration) (f foreground) {
	rng, l := rand.New(rand.NewPCG(seed, 3)), latencies{scale: 1, vary: b.vary}
	gap := float64(l.mean(perQuery)) / load / guestServers
	var mu sync.Mutex
	var all sync.WaitGroup
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(time.Duration(rng.ExpFloat64() * gap)) {
		all.Go(func() {
			sent := time.Now()
			served := b.serve(context.Background(), perQuery)
			mu.Lock()
			defer mu.Unlock()
			f.served += served
			f.took = append(f.took, time.Since(sent))
		})
	}
	all.Wait()
	slices.Sort(f.took)
	return f
}

func (f foreground) quantile(q float64) float64 {
	return f.took[int(q*float64(len(f.took)))].Seconds() * 1000
}

// A guestRow is a row of BenchmarkGuest, which runs a job beside a foreground client.
type guestRow struct {
	load       float64 // load of the foreground, as a share of the servers' time
	processes  int
	background bool
	long       time.Duration // of the measurement
}

// guestFigures are the figures of a row. Latencies are in milliseconds.
type guestFigures struct {
	alone50, alone99, beside50, beside99 float64
	share                                float64 // of the servers' time that the foreground leaves
}

// runGuest measures a foreground alone and beside a job.
func runGuest(t *testing.T, row guestRow) (got guestFigures) {
	const pageEntities = 20
	touch := mapper.Update("touch", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance++
		return nil
	})
	b := newBusy()
	w := newWorldOn(t, 2*guestServers, emulator.Options{}, b.network(), touch)
	w.handlers = w.handlers[:row.processes]
	// a page occupies a server for more than 0.35 s
	all := int64((time.Minute+row.long).Seconds()*guestServers/0.35*pageEntities*(1-row.load)) + 1000
	ids := make([]*datastore.Key, all)
	for i := range ids {
		ids[i] = datastore.IDKey(accounts, int64(i+1), nil)
	}
	for keys := range slices.Chunk(ids, 500) {
		_, err := w.client.PutMulti(t.Context(), keys, make([]account, len(keys)))
		w.must(err)
	}
	w.network.on.Store(true)
	alone := b.run(row.load, 1, row.long)
	got.alone50, got.alone99 = alone.quantile(0.5), alone.quantile(0.99)
	job, err := touch.Start(t.Context(), w.processes[0], mapper.Query{Kind: accounts}, mapper.NoParams{},
		&mapper.StartOptions{PageSize: pageEntities, Background: row.background})
	w.must(err)
	b.run(row.load, 2, time.Minute)
	b.mu.Lock()
	before := b.busy
	b.mu.Unlock()
	beside := b.run(row.load, 3, row.long)
	b.mu.Lock()
	used := b.busy - before
	b.mu.Unlock()
	got.beside50, got.beside99 = beside.quantile(0.5), beside.quantile(0.99)
	got.share = used.Seconds() / (guestServers*row.long.Seconds() - beside.served.Seconds())
	w.must(job.Abort(t.Context()))
	time.Sleep(time.Minute) // pages under way end
	w.network.on.Store(false)
	return got
}

// BenchmarkGuest runs a job beside a foreground client, on a Datastore that becomes slow under
// load, in virtual time. The foreground makes lookups at random times, which take 30% or 60% of the
// servers' time. Its latencies are measured alone, and from the second minute of a job that never
// waits or that is a background job. Its metrics are:
//
//   - alone-p99-ms and p99-ms are the 99th percentiles of the foreground's latency, alone and
//     beside the job
//   - rise-% is how much higher the 99th percentile is beside the job
//   - spare-% is the job's share of the servers' time that the foreground does not use
//
// go test ./bench -run '^$' -bench Guest -benchtime 1x -timeout 1h
func BenchmarkGuest(b *testing.B) {
	for _, load := range []float64{0.3, 0.6} {
		for _, way := range []struct {
			name       string
			background bool
			processes  int
		}{{"plain, 1 process", false, 1}, {"background, 1 process", true, 1}, {"background, 3 processes", true, 3}} {
			b.Run(fmt.Sprintf("%d servers, %.0f%%, %s", guestServers, load*100, way.name), func(b *testing.B) {
				row := guestRow{load, way.processes, way.background, 3 * time.Minute}
				if !way.background {
					row.long = time.Minute
				}
				var got guestFigures
				for range b.N {
					if !inBubble(func(t *testing.T) { got = runGuest(t, row) }) {
						b.Fatal("the run failed")
					}
				}
				b.ReportMetric(got.alone50, "alone-p50-ms")
				b.ReportMetric(got.beside50, "p50-ms")
				b.ReportMetric(got.alone99, "alone-p99-ms")
				b.ReportMetric(got.beside99, "p99-ms")
				b.ReportMetric((got.beside99/got.alone99-1)*100, "rise-%")
				b.ReportMetric(got.share*100, "spare-%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
