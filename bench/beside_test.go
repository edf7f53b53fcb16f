package bench

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// A need describes the calls that the function makes to a service.
type need struct {
	takes time.Duration // how long a call takes
	rate  int           // number of calls a second that the service accepts; it refuses further ones; 0: no limit
	every int           // the function makes a call for every n-th account
}

// A service simulates a service that a job's function calls. It counts calls and refuses those
// above its rate.
type service struct {
	need

	mu      sync.Mutex
	second  int64
	n       int
	calls   int
	refused int
}

var errBusy = errors.New("429 Too Many Requests")

// call makes the call to the service for an account, if the account needs one.
func (s *service) call(key *datastore.Key) error {
	if s.every > 1 && key.ID%int64(s.every) != 0 {
		return nil
	}
	s.mu.Lock()
	if now := time.Now().Unix(); now != s.second {
		s.second, s.n = now, 0
	}
	s.calls++
	s.n++
	over := s.rate > 0 && s.n > s.rate
	if over {
		s.refused++
	}
	s.mu.Unlock()
	if over {
		return mapper.RetryAfter(errBusy, time.Second)
	}
	time.Sleep(s.takes)
	return nil
}

// A besideRow is one comparison of BenchmarkBesideLoop: a job, and programs that do the same work.
type besideRow struct {
	name           string
	n              int // number of accounts
	queue, workers int // the queue's max-concurrent-dispatches, and the job's ExpectedWorkers
	atOnce         int // number of concurrent calls of the function in each page
	need           need
	update         bool
	rate           float64       // limit of entities a second; 0: none
	announces      bool          // the function announces its calls by AwaitCall, and the job has the service's rate
	ideal          time.Duration // the time that the function or the rate alone takes; 0: not compared
	elsewhere      bool          // Wait is called in a process that runs no tasks
	// number of processes that run tasks; 0: one for every 20 tasks that the queue delivers at once
	processes int
}

var besideRows = []besideRow{
	{name: "wait 100ms, 30000, 10 workers, 50 at once", n: 30_000, queue: 10, workers: 10, atOnce: 50,
		need: need{takes: 100 * time.Millisecond}, ideal: 6 * time.Second},
	{name: "50 calls a second, visit, 1 process", n: 6000, queue: 100, workers: 100, atOnce: 1, processes: 1,
		need: need{takes: 300 * time.Millisecond, rate: 50, every: 2}, ideal: time.Minute},
	{name: "50 calls a second, update, 1 process", n: 6000, queue: 100, workers: 100, atOnce: 1, processes: 1,
		update: true, need: need{takes: 300 * time.Millisecond, rate: 50, every: 2}, ideal: time.Minute},
	{name: "50 calls a second, visit, 5 processes", n: 6000, queue: 100, workers: 100, atOnce: 1,
		need: need{takes: 300 * time.Millisecond, rate: 50, every: 2}, ideal: time.Minute},
	{name: "50 calls a second, update, 5 processes", n: 6000, queue: 100, workers: 100, atOnce: 1, update: true,
		need: need{takes: 300 * time.Millisecond, rate: 50, every: 2}, ideal: time.Minute},
	{name: "50 calls a second, visit, 5 processes, announced", n: 6000, queue: 100, workers: 100, atOnce: 1,
		announces: true, need: need{takes: 300 * time.Millisecond, rate: 50, every: 2}, ideal: time.Minute},
	{name: "rate 500, 20 workers, queue of 1000", n: 20_000, queue: 1000, workers: 20, atOnce: 1, rate: 500,
		ideal: 40 * time.Second},
	{name: "1 entity", n: 1, queue: 10, workers: 10, atOnce: 1, update: true},
	{name: "1 entity, wait elsewhere", n: 1, queue: 40, workers: 10, atOnce: 1, update: true, elsewhere: true},
	{name: "1000 entities", n: 1000, queue: 10, workers: 10, atOnce: 1, update: true},
	{name: "1000 entities, wait elsewhere", n: 1000, queue: 40, workers: 10, atOnce: 1, update: true, elsewhere: true},
	{name: "20000 entities of 1ms, 8 workers", n: 20_000, queue: 8, workers: 8, atOnce: 1, update: true,
		need: need{takes: time.Millisecond}},
	{name: "20000 entities, 8 workers", n: 20_000, queue: 8, workers: 8, atOnce: 1, update: true},
	{name: "100000 entities, 8 workers", n: 100_000, queue: 8, workers: 8, atOnce: 1, update: true},
	{name: "100000 entities, 32 workers", n: 100_000, queue: 32, workers: 32, atOnce: 1, update: true},
	{name: "1000000 entities, 8 workers", n: 1_000_000, queue: 8, workers: 8, atOnce: 1, update: true},
	{name: "1000000 entities, 32 workers", n: 1_000_000, queue: 32, workers: 32, atOnce: 1, update: true},
}

// BenchmarkBesideLoop compares jobs with simple programs that do the same work without any
// guarantee. It runs in virtual time, with the latencies of a cloud. Each line is a job. Its
// metrics are:
//
//   - job-s is the time from the call of Start to the job's end, in seconds
//   - wait-s is the time from the job's end to the return of Wait
//   - loop-s is the time of a loop written by hand, with as many workers
//   - limit-s is the time of the same loop with read-ahead, and x-limit is the job's time divided
//     by it
//   - x-ideal is the job's time divided by the time that the function or the rate alone takes
//   - refused-% is the share of the job's calls that the service has refused
//
// The two loops know all keys in advance, and the rate that a service accepts.
//
//	go test ./bench -run '^$' -bench BesideLoop -benchtime 1x
func BenchmarkBesideLoop(b *testing.B) {
	for _, row := range besideRows {
		b.Run(row.name, func(b *testing.B) {
			var got besideTimes
			for range b.N {
				if !inBubble(func(t *testing.T) { got = runBeside(t, &row) }) {
					b.Fatal("the job failed")
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(got.job.Seconds(), "job-s")
			b.ReportMetric(got.wait.Seconds(), "wait-s")
			b.ReportMetric(got.loop.Seconds(), "loop-s")
			b.ReportMetric(got.limit.Seconds(), "limit-s")
			b.ReportMetric(got.job.Seconds()/got.limit.Seconds(), "x-limit")
			if row.ideal > 0 {
				b.ReportMetric(got.job.Seconds()/row.ideal.Seconds(), "x-ideal")
			}
			if row.need.rate > 0 {
				b.ReportMetric(got.refused*100, "refused-%")
			}
		})
	}
}

// TestBesideLoop makes one comparison of BenchmarkBesideLoop with few entities. The job must change
// each entity once.
func TestBesideLoop(t *testing.T) {
	t.Parallel()
	row := besideRow{n: 1200, queue: 10, workers: 4, atOnce: 1, update: true}
	if !inBubble(func(t *testing.T) { runBeside(t, &row) }) {
		t.Fatal("the job failed")
	}
}

// besideTimes are the times of one comparison.
type besideTimes struct {
	job, wait, loop, limit time.Duration
	refused                float64 // the share of the job's calls that the service has refused
}

// runBeside runs the loop, the loop with read-ahead (the limit), and the job. It checks that each
// of them has changed each account once.
func runBeside(t *testing.T, row *besideRow) (got besideTimes) {
	s := &service{need: row.need}
	job := mapper.Visit("beside", func(ctx context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		if row.announces && e.Key.ID%int64(s.every) == 0 {
			if err := e.AwaitCall(ctx); err != nil {
				return err
			}
		}
		return s.call(e.Key)
	}).WithConcurrency(row.atOnce)
	if row.update {
		job = mapper.Update("beside", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
			e.Value.Balance++
			return s.call(e.Key)
		}).WithConcurrency(row.atOnce)
	}
	w := newWorldOn(t, row.queue, emulator.Options{}, usualNetwork(), job)
	if row.processes > 0 {
		w.handlers = w.handlers[:row.processes]
	}
	if row.elsewhere {
		w.handlers = w.handlers[1:]
	}
	keys := make([]*datastore.Key, row.n)
	for i := range keys {
		keys[i] = datastore.IDKey(accounts, int64(i+1), nil)
	}
	for first := 0; first < row.n; first += 500 {
		some := keys[first:min(row.n, first+500)]
		_, err := w.client.PutMulti(t.Context(), some, make([]account, len(some)))
		w.must(err)
	}
	w.network.on.Store(true)
	for _, limit := range []bool{false, true} {
		begun := time.Now()
		p := shards{client: w.client, workers: row.workers, atOnce: row.atOnce, put: row.update, ahead: limit}
		w.must(p.run(t.Context(), keys, row.paced(s)))
		if limit {
			got.limit = time.Since(begun)
		} else {
			got.loop = time.Since(begun)
		}
	}
	time.Sleep(time.Minute)
	s.calls, s.refused = 0, 0
	begun := time.Now()
	o := &mapper.StartOptions{ExpectedWorkers: row.workers, Rate: mapper.Rate{EntitiesPerSecond: row.rate}}
	if row.announces {
		o.Rate.CallsPerSecond = float64(s.rate)
	}
	j, err := job.Start(t.Context(), w.processes[0], mapper.Query{Kind: accounts}, mapper.NoParams{}, o)
	w.must(err)
	status, err := j.Wait(t.Context())
	w.must(err)
	got.job, got.wait = status.Ended.Sub(begun), time.Since(status.Ended)
	if status.State != mapper.StateSucceeded || status.Processed != int64(row.n) {
		t.Errorf("%+v, want %d processed", status, row.n)
	}
	if s.calls > 0 {
		got.refused = float64(s.refused) / float64(s.calls)
	}
	w.network.on.Store(false)
	checkBeside(w, row, keys)
	return got
}

// paced returns the function that both loops call for an account. It keeps to the row's rate, or to
// the service's rate.
func (row *besideRow) paced(s *service) func(*datastore.Key, *account) error {
	var mu sync.Mutex
	next := time.Now()
	each := time.Duration(0)
	if row.rate > 0 {
		each = time.Duration(float64(time.Second) / row.rate)
	}
	if s.rate > 0 {
		each = time.Second / time.Duration(s.rate)
	}
	return func(key *datastore.Key, a *account) error {
		a.Balance += loopRaise
		if each > 0 && (row.rate > 0 || key.ID%int64(s.every) == 0) {
			mu.Lock()
			at := next
			next = next.Add(each)
			mu.Unlock()
			time.Sleep(time.Until(at))
		}
		err := s.call(key)
		// the service counts by whole seconds, so that two calls of different seconds may count in
		// one
		for errors.Is(err, errBusy) {
			time.Sleep(time.Second)
			err = s.call(key)
		}
		return err
	}
}

// checkBeside checks that both loops and the job have each changed every account once.
func checkBeside(w *world, row *besideRow, keys []*datastore.Key) {
	w.Helper()
	want := int64(0)
	if row.update {
		want = 2*loopRaise + 1
	}
	for first := 0; first < len(keys); first += 500 {
		some := make([]account, min(500, len(keys)-first))
		w.must(w.client.GetMulti(w.Context(), keys[first:first+len(some)], some))
		for i, a := range some {
			if a.Balance != want {
				w.Fatalf("%v has %d, want %d", keys[first+i], a.Balance, want)
			}
		}
	}
}
