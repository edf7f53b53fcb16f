package mapper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

var (
	seeds    = flag.Int("seeds", 0, "how many seeds TestSimulation runs; 0: 200, or 12 under -short")
	formFlag = flag.String("form", "", "of the query, empty: half of the simulations are over the whole kind, and half over the other forms")
)

// TestSimulation runs jobs while everything goes wrong that can, and checks
// after each that every account was credited exactly once, and that the records
// prove it.
func TestSimulation(t *testing.T) {
	seed, n := testflag.Seed(t), *seeds
	if n == 0 {
		if n = 200; testing.Short() {
			n = 12
		}
	}
	t.Logf("and %d more; with -seeds 1 it is one", n-1)
	for i := range uint64(n) {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
			if flag.Lookup("test.failfast").Value.String() != "true" { // which has no effect on parallel tests
				t.Parallel()
			}
			synctest.Test(t, func(t *testing.T) { simulate(t, seed+i) })
		})
	}
}

// A simulation is one job in a world that a seed has chosen.
type simulation struct {
	*world
	rng    *rand.Rand
	faults *emulator.Faults
	fleet  *fleet
	keys   []*datastore.Key
	job    *mapper.Job
	mapper *mapper.Mapper[credit]

	visit, finalizes bool
	query            mapper.Query

	mu      sync.Mutex
	fates   map[string]fate // of accounts, by their keys
	tries   map[string]int  // of the function on accounts
	pace    time.Duration   // of the function
	mended  bool            // the function succeeds from now on
	retries int
	others  []int64 // how often other clients have added to an account
}

func simulate(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	faults := emulator.NewFaults(seed, trouble(rng)...)
	faults.Pause()
	checker := &snapshotChecker{T: t}
	s := &simulation{world: &world{T: t}, rng: rng, faults: faults, tries: make(map[string]int), visit: rng.IntN(4) == 0, pace: time.Duration(rng.IntN(3)) * time.Millisecond}
	s.keys = keysOf(rng, 100+rng.IntN(900))
	s.query = s.form()
	define := mapper.Update[member, credit]
	if s.visit {
		define = mapper.Visit[member, credit]
	}
	s.mapper = define("simulated", s.function)
	if s.finalizes = rng.IntN(2) == 0; s.finalizes {
		s.mapper = s.mapper.OnDone(s.finalizer)
	}
	retention := time.Duration(0) // the default
	if !s.query.ReadTime.IsZero() {
		retention = 30 * 24 * time.Hour
	}
	s.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: faults, Pessimistic: rng.IntN(3) == 0, Interceptor: checker.intercept, Retention: retention},
		queue:    few(int32(1 + rng.IntN(20))),
		deadline: time.Duration(15+rng.IntN(600)) * time.Second,
	}, s.mapper)
	s.fleet = newFleet(s.world, seed, 1+rng.IntN(4), s.mapper)
	if rng.IntN(2) == 0 {
		s.fleet.zombies = rng.Float64() / 2
	}
	s.others = make([]int64, len(s.keys))
	s.fates = fatesOf(rng, s.keys)
	s.putMembers()
	if !s.query.ReadTime.IsZero() {
		time.Sleep(time.Second)
		s.query.ReadTime = time.Now()
		time.Sleep(time.Second)
	}
	faults.Resume()
	s.start(&mapper.StartOptions{ID: "sim", PageSize: 5 + rng.IntN(100), Workers: 1 + rng.IntN(64), Timeout: 5 * time.Second})
	var people sync.WaitGroup
	for range rng.IntN(4) {
		client := rand.New(rand.NewPCG(seed, rng.Uint64()))
		people.Go(func() { s.interfere(client) })
	}
	people.Go(s.operate)
	people.Wait()
	s.checkEnd(s.await())
	for n := 1 + rng.IntN(3); n >= 0; n-- { // in vain, but for the last time
		s.retry(n == 0)
		if rng.IntN(2) == 0 {
			s.operate()
		}
		s.checkEnd(s.await())
	}
	faults.Pause()
	time.Sleep(time.Hour) // for what is late
	s.checkBalances()
	proof, err := s.job.Verify(t.Context())
	if err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	faults.Resume()
	s.cleanUp(&mapper.CleanUpOptions{Failures: rng.IntN(2) == 0, Job: rng.IntN(2) == 0})
	t.Logf("%d ranges, checked %d times; %d processes died; went wrong: %v", proof.Ranges, checker.checks.Load(), s.fleet.deaths(), faults.Counts())
}

var endKey = datastore.NameKey("End", "sim", nil)

type ends struct{ Ends, Credited int64 }

// finalizer counts the ends of the job.
func (s *simulation) finalizer(ctx context.Context, d *mapper.Done, _ credit) error {
	var e ends
	if err := s.client.Get(ctx, endKey, &e); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		return err
	}
	d.Put(endKey, &ends{e.Ends + 1, d.Status.Counters["credited"]})
	return nil
}

// trouble draws how often what goes wrong in one simulation: all that can, most of it
// rarely.
func trouble(rng *rand.Rand) []emulator.Fault {
	share := func(most float64) float64 { return most * math.Pow(1000, -rng.Float64()) }
	minutes := func(n int) time.Duration { return time.Duration(rng.IntN(n*60)) * time.Second }
	down := minutes(3)
	return []emulator.Fault{
		{Kind: emulator.LoseCall, Share: share(0.2)},
		{Kind: emulator.LoseAnswer, Share: share(0.2)},
		{Kind: emulator.LoseAnswer, Share: share(0.2), Code: codes.DeadlineExceeded, Methods: []string{"Commit", "CreateTask"}},
		{Kind: emulator.LoseCall, Share: share(0.1), Code: codes.Internal},
		{Kind: emulator.LoseCall, After: down, Until: down + minutes(2) + time.Second},
		{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: time.Duration(1+rng.IntN(100)) * time.Millisecond}},
		{Kind: emulator.SlowCall, Share: share(0.05), Latency: emulator.Uniform{Max: 90 * time.Second}},
		{Kind: emulator.SlowCall, Share: 0.4 * rng.Float64(), Latency: emulator.Uniform{Min: 10 * time.Second, Max: 100 * time.Second}, Methods: []string{"BeginTransaction"}},
		{Kind: emulator.AbortCommit, Share: share(0.3)},
		{Kind: emulator.DeliverTwice, Share: share(0.5), Latency: emulator.Uniform{Max: 5 * time.Minute}},
		{Kind: emulator.DeliverTogether, Share: 0.5 * rng.Float64(), Latency: emulator.Uniform{Max: time.Second}},
		{Kind: emulator.DeliverLate, Share: share(0.2), Latency: emulator.Uniform{Max: 10 * time.Minute}},
		{Kind: emulator.DeliverShuffled, Share: share(1)},
		{Kind: emulator.CrashReceiver, Share: share(0.3)},
		{Kind: emulator.LoseReply, Share: share(0.3)},
	}
}

// insist does what a person would do: again after each error, unless the job's state
// makes it pointless, or the job is gone.
func (s *simulation) insist(what string, do func() error) {
	for range 10_000 {
		err := do()
		if err == nil || errors.Is(err, mapper.ErrState) || errors.Is(err, mapper.ErrNoSuchJob) {
			return
		}
		time.Sleep(time.Second)
	}
	s.Errorf("%s: it never succeeds", what)
}

func (s *simulation) start(o *mapper.StartOptions) {
	s.insist("start", func() (err error) {
		s.job, err = s.mapper.Start(s.Context(), s.engine, s.query, credit{10}, o)
		return err
	})
}

// operate is somebody who pauses, purges, kills and resumes.
func (s *simulation) operate() {
	for range s.rng.IntN(4) {
		time.Sleep(time.Duration(s.rng.IntN(20_000)) * time.Millisecond)
		repair := func() error { return s.job.Resume(s.Context()) }
		switch s.rng.IntN(4) {
		case 0:
			_ = s.job.Pause(s.Context()) // it may have taken place, whatever it says
		case 1:
			s.purge() // with the chain of sweeps
		case 2:
			s.purge()
			repair = func() error { return s.engine.Revive(s.Context()) }
		default:
			s.fleet.killAny()
			continue
		}
		time.Sleep(time.Duration(s.rng.IntN(600)) * time.Second)
		s.insist("repair", repair)
	}
}

// purge empties the queue.
func (s *simulation) purge() {
	client, err := s.emulator.CloudTasks(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	_, _ = client.PurgeQueue(s.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queueName}) // it may fail, like all calls
}

// interfere is another client, which adds to accounts while the job runs. It notes
// what it has done in the account, so that it can repeat a call whose answer is lost.
func (s *simulation) interfere(rng *rand.Rand) {
	for range rng.IntN(30) {
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		i, mark := rng.IntN(len(s.keys)), fmt.Sprint("m", rng.Uint64())
		s.insist("another client", func() error {
			_, err := s.client.RunInTransaction(s.Context(), func(tx *datastore.Transaction) error {
				var list datastore.PropertyList
				if err := tx.Get(s.keys[i], &list); err != nil {
					return err
				}
				if slices.ContainsFunc(list, func(p datastore.Property) bool { return p.Name == mark }) {
					return nil
				}
				for j := range list {
					if list[j].Name == "Balance" {
						list[j].Value = list[j].Value.(int64) + 1000
					}
				}
				list = append(list, datastore.Property{Name: mark, Value: true})
				_, err := tx.Put(s.keys[i], &list)
				return err
			})
			return err
		})
		s.mu.Lock()
		s.others[i]++
		s.mu.Unlock()
	}
}

// open lists the ranges that are not done.
func (s *simulation) open() (open []record) {
	for _, r := range records(s, s.client)["sim"] {
		if r.State == "pending" {
			open = append(open, r)
		}
	}
	return open
}

// queued lists the tasks of the queue.
func (s *simulation) queued() (queued []string) {
	client, err := s.emulator.CloudTasks(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	for task, err := range client.ListTasks(s.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName, ResponseView: cloudtaskspb.Task_FULL}).All() {
		if err != nil {
			s.Fatal(err)
		}
		queued = append(queued, fmt.Sprintf("%s %s at %v, %d dispatches", task.GetHttpRequest().GetUrl(), task.GetHttpRequest().GetBody(), task.ScheduleTime.AsTime(), task.DispatchCount))
	}
	return queued
}

// await waits for the end of the job. If nearly every call is slow an attempt of a task may
// hardly ever get through before its deadline: after a while nothing goes wrong any more, and
// the job has to end.
func (s *simulation) await() *mapper.Status {
	status, err := s.waitFor(10 * time.Hour)
	if err != nil {
		s.faults.Pause()
		defer s.faults.Resume()
		status, err = s.waitFor(10 * time.Hour) // a name is taken for 24
	}
	if err != nil {
		status, _ := s.job.Status(s.Context())
		s.Fatalf("the job does not end: %v; status %+v; open ranges %v; tasks %v", err, status, s.open(), s.queued())
	}
	return status
}

func (s *simulation) waitFor(t time.Duration) (status *mapper.Status, err error) {
	ctx, cancel := context.WithTimeout(s.Context(), t)
	defer cancel()
	for ctx.Err() == nil {
		if status, err = s.job.Wait(ctx); err == nil {
			return status, nil
		}
	}
	return nil, err
}

// retry has the job try its failures again, after the function has been mended or
// not.
func (s *simulation) retry(mended bool) {
	s.mu.Lock()
	s.mended = mended
	s.mu.Unlock()
	s.insist("retry", func() error {
		s.retries++
		return s.job.Retry(s.Context())
	})
}

// cleanUp has the job's records cleaned up, and checks that they are.
func (s *simulation) cleanUp(o *mapper.CleanUpOptions) {
	s.insist("clean up", func() error { return s.job.CleanUp(s.Context(), o) })
	time.Sleep(24 * time.Hour)
	s.faults.Pause()
	jobs := 1
	if o.Job {
		jobs = 0
	}
	if n := s.count(mapper.RangeKind, "job"); n != 0 {
		s.Errorf("%d ranges are left", n)
	}
	if n := s.count(mapper.JobKind, "mapper"); n != jobs {
		s.Errorf("%d jobs are left of %d", n, jobs)
	}
}

// checkEnd checks what the job says at its end.
func (s *simulation) checkEnd(status *mapper.Status) {
	s.faults.Pause()
	defer s.faults.Resume()
	bad := make(map[string]bool)
	for id, f := range s.fates {
		if f >= failed && !s.mended {
			bad[id] = true
		}
	}
	want := mapper.Succeeded
	if len(bad) > 0 {
		want = mapper.SucceededWithFailures
	}
	n := int64(len(s.keys) - len(bad))
	if status.State != want || status.Processed != n || status.Counters["credited"] != n || status.Failures != int64(len(bad)) {
		s.Errorf("status %+v of %d accounts, %d of them bad", status, len(s.keys), len(bad))
	}
	failures, _, err := s.job.Failures(s.Context(), "")
	if err != nil {
		s.Error(err)
	}
	for _, f := range failures {
		if !bad[f.Key.Encode()] {
			s.Errorf("a failure of a good account: %+v", f)
		}
	}
	var e ends
	if err := s.client.Get(s.Context(), endKey, &e); s.finalizes && (err != nil || e.Credited != n || e.Ends < 1 || e.Ends > int64(1+s.retries)) {
		s.Errorf("the finalizer's %+v, %v; %d accounts, %d retries", e, err, n, s.retries)
	}
}

// checkBalances checks that every account was credited exactly once, and that what
// other clients have added is there.
func (s *simulation) checkBalances() {
	wrong := 0
	for i, k := range s.keys {
		var list datastore.PropertyList
		if err := s.client.Get(s.Context(), k, &list); err != nil {
			s.Fatal(err)
		}
		want := int64(i) + 1000*s.others[i]
		if !s.visit {
			want += 10
		}
		for _, p := range list {
			if p.Name == "Balance" && p.Value != want {
				if wrong++; wrong <= 3 {
					s.Errorf("%v has %v, want %d", k, p.Value, want)
				}
			}
		}
		if s.visit && s.tries[k.Encode()] == 0 {
			s.Errorf("%v was not visited", k)
		}
	}
	if wrong > 3 {
		s.Errorf("%d of %d accounts are wrong", wrong, len(s.keys))
	}
}
