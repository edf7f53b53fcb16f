package bench

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/mapper"
)

// Limits of the time of a small job after its first dispatch: a constant, and a multiple of the
// page time. The page time is how long a page of that job takes: a full page, or as many entities
// as the function can process in StartOptions.PageTime.
const (
	smallPages = 2
	smallStart = 200 * time.Millisecond
)

// TestSmallJobs runs jobs over few entities with 100 workers. The time of such a job is mostly its
// start. They are over a whole kind, and over one in ten entities of a kind.
//
//	go test ./bench -run TestSmallJobs -v
func TestSmallJobs(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	const workers = 100
	l := pick(t, allLatencies, *latenciesFlag)
	t.Logf("\nmatching  of           cost    seconds  at most  reads each")
	for _, every := range []int{1, 10} {
		for _, n := range []int{1, 10, 100, 500, 501, 1000, 2000, 5000, 10_000, 20_000} {
			if every*n > 100_000 {
				continue
			}
			costs := []time.Duration{200 * time.Microsecond, base, 10 * base}
			t.Run(fmt.Sprintf("%d of %d", n, every*n), func(t *testing.T) {
				if every*n > 5000 {
					nightly.Leave(t)
				}
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, workers, newCloud(l, 1))
					r := random{n: every * n, key: func(i int) *datastore.Key {
						return datastore.IDKey(kind, int64(i+1), nil)
					}}
					query := mapper.Query{Kind: kind}
					if every > 1 {
						r.matches = make([]bool, every*n)
						for i := range n {
							r.matches[every*i] = true
						}
						query.Filters = []mapper.Filter{mapper.Where("Match", "=", true)}
					}
					f.seed(r)
					for _, cost := range costs {
						f.function = func(*datastore.Key) { time.Sleep(cost) }
						status, took := f.run(fmt.Sprint("small-", cost.Microseconds()), query, mapper.Splitting{}, nil,
							0)
						if status.State != mapper.StateSucceeded || status.Processed != int64(n) {
							t.Errorf("the job is %+v, want %d processed", status, n)
						}
						most := l.mean(l.way) + smallPages*pageTime(l, n, cost) + smallStart
						reads := float64(f.read) / float64(n)
						t.Logf("%8d  %-8d  %7v  %9.2f  %7.2f  %10.2f", n, every*n, cost, took.Seconds(), most.Seconds(),
							reads)
						if took > most {
							t.Errorf("%d of %d entities of %v take %.2f s, want at most %.2f s", n, every*n, cost,
								took.Seconds(), most.Seconds())
						}
					}
				})
			})
		}
	}
}

// pageTime returns how long a page takes if the job has n entities.
func pageTime(l latencies, n int, cost time.Duration) time.Duration {
	const longest = 3 * time.Second // the default of StartOptions.PageTime
	n = min(n, *pageSize)
	calls := time.Duration((n+batch-1)/batch)*perQuery + time.Duration(n)*perEntity + perCommit
	return min(longest, time.Duration(n)*cost) + l.mean(calls)
}
