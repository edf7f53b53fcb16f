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
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/mapper"
)

// guestServers is the number of servers that the Datastore in BenchmarkGuest has.
const guestServers = 50

// perWrite is how long a server of the Datastore in BenchmarkGuest is busy with one entity of a
// commit. The pages of BenchmarkGuest have 20 entities: their commits take as long as commits of
// 500 entities at 0.6 ms each.
const perWrite = 15 * time.Millisecond

// A busy is a model of a Datastore that becomes slow under load. It has a number of servers. A
// server handles one call at a time. Calls wait for a server, first come, first served. How long a
// server is busy with a call is log-normal, as latencies of services are: the 99th percentile is
// five times the median.
type busy struct {
	servers *semaphore.Weighted
	vary    faults.Latency

	mu   sync.Mutex
	rng  *rand.Rand
	busy time.Duration // the sum over all servers of the time that they handle calls, including the job's
}

func newBusy() *busy {
	return &busy{servers: semaphore.NewWeighted(guestServers), rng: rand.New(rand.NewPCG(1, 2)),
		vary: faults.LogNormal{Median: time.Second, P99: 5 * time.Second}}
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

// serve occupies a server for a call whose usual time is given. It returns how long the call took,
// with the wait.
func (b *busy) serve(ctx context.Context, usual time.Duration) time.Duration {
	b.mu.Lock()
	takes := time.Duration(b.vary.Draw(b.rng).Seconds() * float64(usual))
	b.mu.Unlock()
	if b.servers.Acquire(ctx, 1) != nil {
		return 0 // the caller has cancelled the call
	}
	time.Sleep(takes)
	b.servers.Release(1)
	return takes
}

// A foreground is a client that makes lookups at random times, at a constant mean rate. It has the
// latencies that it has measured.
type foreground struct {
	served time.Duration
	took   []time.Duration
}

// run lets a foreground client make lookups for a time. They use the given share of the servers'
// time.
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

// A guestRow is one measurement of BenchmarkGuest: a job that runs while a foreground client makes
// lookups.
type guestRow struct {
	load       float64 // the share of the servers' time that the foreground client uses
	processes  int
	background bool
	long       time.Duration // how long the measurement takes
}

// guestFigures are the results of a measurement. Latencies are in milliseconds.
type guestFigures struct {
	alone50, alone99, beside50, beside99 float64
	// the job's share of the servers' time that the foreground client does not use
	share float64
}

// runGuest measures the latencies of a foreground client, first alone and then while a job runs.
func runGuest(t *testing.T, row guestRow) (got guestFigures) {
	const pageEntities = 20
	touch := mapper.Update("touch", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance++
		return nil
	})
	b := newBusy()
	w := newWorldOn(t, 2*guestServers, emulator.Options{}, b.network(), touch)
	w.handlers = w.handlers[:row.processes]
	// A page occupies a server for more than 0.35 s. So the job does not end before the
	// measurement.
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
	time.Sleep(time.Minute) // until the pages that still run have ended
	w.network.on.Store(false)
	return got
}

// BenchmarkGuest runs a job while a foreground client makes lookups, on a Datastore that becomes
// slow under load, in virtual time. The client's lookups use 30% or 60% of the servers' time. Its
// latencies are measured without a job, and from the second minute of a job. The job is a
// background job, or one that never waits for other clients. Its metrics are:
//
//   - alone-p99-ms and p99-ms are the 99th percentiles of the client's latency, alone and
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
