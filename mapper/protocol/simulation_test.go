package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

var formFlag = flag.String("form", "",
	"of the query, empty: half of the simulations are over the whole kind, and half over the other forms")

// TestSimulation runs jobs with all kinds of faults. After each job it checks that every account
// was credited exactly once, and that the job's records prove it.
func TestSimulation(t *testing.T) {
	testflag.Simulate(t, 1, 1, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
	})
}

// A simulation is one run of TestSimulation, with one seed. It runs several jobs with the same ID,
// one after the other. Another job runs at the same time in the same processes.
type simulation struct {
	*world
	rng    *rand.Rand
	seed   uint64
	faults *faults.Faults
	fleet  *fleet
	keys   []*datastore.Key
	mapper *mapper.Mapper[credit]
	beside *mapper.Mapper[mapper.NoParams]

	visit, finalizes bool
	query            mapper.Query
	members          []member // the accounts before the first job
	mates
	names int // number of counters of a job
	// by account: how many jobs have credited it, and how often other clients have added to it
	credits, others []int64
	idempotency     map[string]map[string]bool // the idempotency keys that each account has had

	late sync.WaitGroup // waits for operators who act late

	unattended bool       // whether nobody calls ReviveJobs, or repeats a call that has already had its effect
	dice       *rand.Rand // random numbers for mishaps of processes
	calms      *rand.Rand // random numbers for the ends of faults
	deadline   time.Duration

	mu       sync.Mutex
	round    int             // number of the current job
	aborted  int             // number of aborted jobs
	tampered *tampered       // a record that the test has changed; nil: none
	fates    map[string]fate // how the function fails on an account, by the account's key
	broken   bool            // whether the function fails on all accounts

	breakOnce *sync.Once
	end       finalFate      // what the finalizer does
	tries     map[string]int // number of calls of the function, by account
	ends      int            // calls of the finalizer
	pace      time.Duration  // how long the function takes
	mended    bool           // whether the function succeeds from now on
	retries   int
	mishaps   int // number of operators who may still have a mishap
}

const simID = "sim"

func simulate(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	injected := faults.New(seed, trouble(rng)...)
	injected.Pause()
	checker := &snapshotChecker{T: t}
	s := &simulation{
		world: &world{T: t}, rng: rng, seed: seed, faults: injected, visit: rng.IntN(4) == 0,
		pace:  time.Duration(rng.IntN(3)) * time.Millisecond,
		names: []int{1, 7, 300}[rng.IntN(3)], idempotency: make(map[string]map[string]bool),
	}
	s.dice, s.calms = rand.New(rand.NewPCG(seed, 5)), rand.New(rand.NewPCG(seed, 6))
	s.unattended = s.dice.IntN(2) == 0
	s.keys = keysOf(rng, 100+rng.IntN(900))
	s.query = s.form()
	define := mapper.Update[member, credit]
	if s.visit {
		define = mapper.Visit[member, credit]
	}
	s.mapper = define("simulated", s.function)
	if batches := rand.New(rand.NewPCG(seed, 8)); batches.IntN(3) == 0 {
		define := mapper.UpdateBatches[member, credit]
		if s.visit {
			define = mapper.VisitBatches[member, credit]
		}
		s.mapper = define("simulated", 1+batches.IntN(60), s.batchFunction)
	}
	if s.finalizes = rng.IntN(2) == 0; s.finalizes {
		s.mapper = s.mapper.WithFinalizer(s.finalizer)
	}
	s.beside = besideMapper(time.Duration(rng.IntN(300)) * time.Millisecond)
	const retention = 60 * 24 * time.Hour // so long that a process's late commit can be checked at its own time
	pessimistic, workers := rng.IntN(3) == 0, few(int32(1+rng.IntN(20)))
	s.deadline = time.Duration(15+rng.IntN(1200)) * time.Second
	s.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: injected, PessimisticConcurrency: pessimistic,
			Interceptor: checker.intercept,
			Retention:   retention},
		queue:    workers,
		deadline: s.deadline,
		plain:    rand.New(rand.NewPCG(seed, 7)).IntN(2) == 0,
	}, s.mapper, s.beside)
	s.fleet = newFleet(s.world, seed, 1+rng.IntN(4), s.mapper, s.beside)
	if rng.IntN(2) == 0 {
		s.fleet.zombies = rng.Float64() / 2
	}
	s.fleet.stops.most = 4 * time.Hour
	// a separate source, so that the other random numbers of a seed stay the same
	adding := rand.New(rand.NewPCG(seed, 4))
	if adding.IntN(4) > 0 {
		s.fleet.addIn(1+adding.IntN(8), time.Duration(adding.IntN(2)*adding.IntN(1000))*time.Millisecond)
		s.fleet.stops.dieAdding(adding.IntN(6), adding.Float64(), adding)
	}
	s.pair()
	s.others, s.credits = make([]int64, len(s.keys)), make([]int64, len(s.keys))
	s.putMembers()
	if !s.query.ReadTime.IsZero() {
		time.Sleep(time.Second)
		s.query.ReadTime = time.Now()
		time.Sleep(time.Second)
	}
	others := rng.IntN(60)
	s.putBeside(others)
	injected.Resume()
	if others > 0 {
		s.startBeside()
	}
	for rounds := 2 + rng.IntN(2); rounds > 0; rounds-- {
		s.newRound()
		if rng.IntN(4) == 0 {
			s.abortedJob()
		} else {
			s.job()
		}
		s.cleanUp(rounds == 1)
	}
	if others > 0 {
		s.checkBeside(others)
	}
	s.late.Wait()
	s.fleet.thaw()
	s.faults.Pause()
	time.Sleep(24 * time.Hour) // until late calls have come, and all processes have continued
	s.checkBalances()
	s.checkIdempotency()
	t.Logf("%d rounds, records checked %d times; %d processes died, and %d were stopped; went wrong: %v",
		s.round, checker.checks.Load(), s.fleet.deaths(), s.fleet.stops.count, injected.Counts())
}

// newRound prepares the next job. It chooses the accounts on which the function fails.
func (s *simulation) newRound() {
	s.faults.Pause()
	if s.round > 0 {
		s.activate()
	}
	s.faults.Resume()
	s.fleet.stops.allow(s.rng.IntN(8), math.Pow(1000, -s.rng.Float64()))
	s.fleet.stops.freeze(s.rng.IntN(3), math.Pow(1000, -s.rng.Float64()))
	s.thaw()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	s.mishaps = s.dice.IntN(5)
	s.fleet.stops.kill(s.dice.IntN(4), 0.1*math.Pow(1000, -s.dice.Float64()))
	s.fates, s.end = fatesOf(s.rng, s.keys), finalFate(s.rng.IntN(int(finalFates)))
	s.tries, s.ends, s.mended, s.retries = make(map[string]int), 0, false, 0
	s.broken, s.breakOnce = s.dice.IntN(3) == 0, new(sync.Once)
	if s.broken {
		s.fleet.fails.Store(true) // also in later rounds, because a stopped process logs the failure when it continues
	}
}

// options returns the options of the jobs.
func (s *simulation) options() *mapper.StartOptions {
	o := &mapper.StartOptions{ID: simID, AllowEmpty: true, PageSize: 5 + s.rng.IntN(100),
		ExpectedWorkers: 1 + s.rng.IntN(64),
		Concurrency:     1 + s.dice.IntN(2)*s.dice.IntN(30),
		EntityTimeout:   5 * time.Second}
	// in every third simulation, the calls for a job have a rate, from the minimum for these
	// workers on
	if calls := rand.New(rand.NewPCG(s.seed, 9)); calls.IntN(3) == 0 {
		wait := min(20*time.Second, s.deadline/20)
		o.Rate.CallsPerSecond = max(float64(o.ExpectedWorkers), 20) / wait.Seconds() * (1.01 + 9*calls.Float64())
	}
	return o
}

// job runs one job to its end, with retries, and checks its effects.
func (s *simulation) job() {
	job := s.start(s.options())
	var people sync.WaitGroup
	for range s.rng.IntN(4) {
		s.send(&people, s.interfere)
	}
	s.send(&people, s.operate)
	// a separate source, so that the other random numbers of a seed stay the same
	platform := rand.New(rand.NewPCG(s.seed, uint64(100+s.round)))
	people.Go(func() { s.shutDown(platform) })
	people.Go(func() { s.heat(rand.New(rand.NewPCG(s.seed, uint64(200+s.round)))) })
	if s.rng.IntN(2) == 0 && !s.broken { // with both causes, nobody could tell why the job fails
		s.send(&people, s.tamper)
	}
	people.Wait()
	status := s.awaitFunction()
	s.checkEnd(status)
	for n := 1 + s.rng.IntN(3); n >= 0; n-- { // before each retry except the last, the function is not repaired
		s.retry(status, n == 0)
		if s.rng.IntN(2) == 0 {
			s.operate(s.rng)
		}
		status = s.await()
		s.checkEnd(status)
		if s.dice.IntN(2) == 0 {
			s.fleet.thaw()
			time.Sleep(10 * time.Second) // processes that continue now are too late to change anything
		}
	}
	s.faults.Pause()
	time.Sleep(time.Hour) // until late tasks have run
	if !s.visit {
		for i := range s.credits {
			s.credits[i]++
		}
	}
	s.matesPut(false)
	s.checkBalances()
	proof, err := s.handle().Verify(s.Context(), nil)
	if err != nil || len(proof.Problems) > 0 {
		s.Errorf("proof %+v, %v", proof, err)
	}
	s.faults.Resume()
	s.abortLate(job)
}

// send lets an operator or a client act while the job runs, with its own source of random numbers.
func (s *simulation) send(people *sync.WaitGroup, do func(*rand.Rand)) {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
	people.Go(func() { do(rng) })
}

// abortedJob starts a job, and aborts it before its end. Exactly the entities that the job counts
// as processed must have changed, whichever pages were running.
func (s *simulation) abortedJob() {
	s.aborted++
	s.start(s.options())
	time.Sleep(time.Duration(math.Pow(2000, s.rng.Float64()) * float64(10*time.Millisecond)))
	s.fleet.stops.freeze(1+s.rng.IntN(4), 0.2)
	time.Sleep(time.Duration(s.rng.IntN(200)) * time.Millisecond)
	s.insist("abort", nil, func(ctx context.Context) error { return s.ofProcess().Abort(ctx) })
	s.thaw()
	s.cleanUpWith(&mapper.CleanUpOptions{IncludeFailures: true})
	s.faults.Pause()
	defer s.faults.Resume()
	status, err := s.handle().Status(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	credited, unknown := int64(0), int64(len(s.balances))
	s.matesPut(true)
	s.eachBalance(func(i int, balance, want int64) {
		if balance == want+10 && !s.visit {
			s.credits[i]++
			credited++
		}
	})
	if status.State == mapper.StateAborted &&
		(!s.visit && (status.Processed < credited || status.Processed > credited+unknown) ||
			status.Counters["credited"] != status.Processed) {
		s.Errorf("%d accounts were credited; status %+v", credited, status)
	}
	if status.State != mapper.StateAborted && !status.State.Ended() {
		s.Errorf("an aborted job: %+v", status)
	}
}

// A finalFate is how the job's finalizer fails, until the test repairs it.
type finalFate int

const (
	endsWell  finalFate = iota
	endsLate            // fails a few times
	endsSlow            // hangs twice
	endsTwice           // kills its process twice
	neverEnds           // always fails
	deadlyEnd           // always kills its process
	finalFates
)

// fails reports whether such a finalizer makes the job fail.
func (f finalFate) fails() bool { return f >= neverEnds }

type ends struct{ Ends, Credited int64 }

// endKey is the key of the entity that the finalizer of the present job writes.
func (s *simulation) endKey() *datastore.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return datastore.NameKey("End", fmt.Sprint(s.round), nil)
}

// finalizer is the finalizer of the jobs. It counts how many times it takes effect.
func (s *simulation) finalizer(ctx context.Context, d *mapper.Completion, _ credit) error {
	s.mu.Lock()
	fate, n := s.end, s.ends
	s.ends++
	s.mu.Unlock()
	switch {
	case fate == endsLate && n < 3:
		return errors.New("not yet")
	case fate == endsSlow && n < 2:
		time.Sleep(10 * time.Minute)
		return nil
	case fate == endsTwice && n < 2, fate == deadlyEnd:
		return s.fleet.die(ctx)
	case fate == neverEnds:
		return mapper.Permanent(errors.New("never"))
	}
	var e ends
	if err := s.client.Get(ctx, s.endKey(), &e); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		return err
	}
	d.Put(s.endKey(), &ends{e.Ends + 1, d.Status.Counters["credited"]})
	return nil
}

// trouble draws how often each kind of fault happens in a simulation. All kinds may happen, most of
// them rarely.
func trouble(rng *rand.Rand) []faults.Rule {
	share := func(most float64) float64 { return most * math.Pow(1000, -rng.Float64()) }
	minutes := func(n int) time.Duration { return time.Duration(rng.IntN(n*60)) * time.Second }
	down := minutes(3)
	return []faults.Rule{
		{Kind: faults.LoseCall, Share: share(0.2)},
		{Kind: faults.LoseAnswer, Share: share(0.2)},
		{Kind: faults.LoseAnswer, Share: share(0.2), Code: codes.DeadlineExceeded,
			Methods: []string{"Commit", "CreateTask"}},
		{Kind: faults.LoseCall, Share: share(0.1), Code: codes.Internal},
		{Kind: faults.LoseCall, After: down, Until: down + minutes(2) + time.Second},
		{Kind: faults.SlowCall,
			Latency: faults.Exponential{Mean: time.Duration(1+rng.IntN(100)) * time.Millisecond}},
		{Kind: faults.SlowCall, Share: share(0.05), Latency: faults.Uniform{Max: 90 * time.Second}},
		{Kind: faults.SlowCall, Share: 0.4 * rng.Float64(), Latency: faults.Uniform{Min: 10 * time.Second,
			Max: 100 * time.Second}, Methods: []string{"BeginTransaction"}},
		{Kind: faults.AbortCommit, Share: share(0.3)},
		{Kind: faults.DeliverTwice, Share: share(0.5), Latency: faults.Uniform{Max: 5 * time.Minute}},
		{Kind: faults.DeliverTogether, Share: 0.5 * rng.Float64(), Latency: faults.Uniform{Max: time.Second}},
		{Kind: faults.DeliverLate, Share: share(0.2), Latency: faults.Uniform{Max: 10 * time.Minute}},
		{Kind: faults.DeliverShuffled, Share: share(1)},
		{Kind: faults.CrashReceiver, Share: share(0.3)},
		{Kind: faults.LoseReply, Share: share(0.3)},
	}
}

// checkEnd checks the final status of the job.
func (s *simulation) checkEnd(status *mapper.Status) {
	s.faults.Pause()
	defer s.faults.Resume()
	bad := make(map[string]bool)
	for id, f := range s.fates {
		if f >= failed && !s.mended {
			bad[id] = true
		}
	}
	want, counters := mapper.StateSucceeded, make(map[string]int64)
	if len(bad) > 0 {
		want = mapper.StateSucceededWithFailures
	}
	n := int64(len(s.keys) - len(bad))
	for _, k := range s.keys {
		if !bad[k.Encode()] {
			id := int64(len(k.Encode()))
			if counters["credited"]++; counters["credited"] == 1 {
				counters["min(length)"], counters["max(length)"] = id, id
			}
			counters[s.counter(k)] += id
			counters["min(length)"], counters["max(length)"] = min(counters["min(length)"], id),
				max(counters["max(length)"], id)
		}
	}
	if status.State != want || status.Processed != n || !maps.Equal(status.Counters, counters) ||
		status.Failures != int64(len(bad)) {
		s.Errorf("status %+v of %d accounts, %d of them bad; want the counters %v", status, len(s.keys), len(bad),
			counters)
	}
	failures, _, err := s.handle().FailuresPage(s.Context(), "")
	if err != nil {
		s.Error(err)
	}
	for _, f := range failures {
		if !bad[f.Key.Encode()] {
			s.Errorf("a failure of a good account: %+v", f)
		}
	}
	var e ends
	if err := s.client.Get(s.Context(), s.endKey(), &e); s.finalizes && (err != nil || e.Credited != n || e.Ends < 1 ||
		e.Ends > int64(1+s.retries)) {
		s.Errorf("the finalizer's %+v, %v; %d accounts, %d retries", e, err, n, s.retries)
	}
	for _, k := range s.keys {
		if s.tries[k.Encode()] == 0 {
			s.Errorf("the function was not called for %v", k)
		}
	}
}

// eachBalance calls f with the balance of every account and the expected one.
func (s *simulation) eachBalance(f func(i int, balance, want int64)) {
	for first := 0; first < len(s.keys); first += 400 {
		batch := s.keys[first:min(first+400, len(s.keys))]
		all := make([]datastore.PropertyList, len(batch))
		if err := s.client.GetMulti(s.Context(), batch, all); err != nil {
			s.Fatal(err)
		}
		for j, list := range all {
			for _, p := range list {
				i := first + j
				if set := s.balances[i]; set != nil && p.Name == "Balance" && !set[p.Value.(int64)] {
					s.Errorf("%v has %v, want one of %v", s.keys[i], p.Value, set)
				}
				if p.Name == "Balance" && s.balances[i] == nil {
					f(i, p.Value.(int64), int64(i)+1000*s.others[i]+10*s.credits[i])
				}
			}
		}
	}
}

// checkBalances checks that each job has credited every account exactly once, and that no addition
// of another client is lost.
func (s *simulation) checkBalances() {
	wrong := 0
	s.eachBalance(func(i int, balance, want int64) {
		if balance != want {
			if wrong++; wrong <= 3 {
				s.Errorf("%v has %v, want %d", s.keys[i], balance, want)
			}
		}
	})
	if wrong > 3 {
		s.Errorf("%d of %d accounts are wrong", wrong, len(s.keys))
	}
}

// checkIdempotency checks the idempotency keys of each account: it must have one key in each job,
// and different ones in different jobs.
func (s *simulation) checkIdempotency() {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool)
	for id, keys := range s.idempotency {
		for key := range keys {
			if all[key] {
				s.Errorf("two accounts have one idempotency key: %s", id)
			}
			all[key] = true
		}
		if len(keys) > s.round || len(keys) < s.round-s.aborted {
			s.Errorf("an account had %d idempotency keys in %d jobs, %d of them aborted", len(keys), s.round,
				s.aborted)
		}
	}
}

// mates are the accounts of a simulation that are put by the functions of other accounts. The two
// accounts are close in the order of keys, and often in the same page. Other clients do not write
// these accounts. After a job, such an account must have the balance that was put, with or without
// its own credit, and never its earlier balance.
type mates struct {
	puts     map[string]int         // the index of the account that each account puts, by key
	balances map[int]map[int64]bool // the allowed balances of each account that is put, by index
}

// pair chooses which accounts put which.
func (s *simulation) pair() {
	s.puts, s.balances = make(map[string]int), make(map[int]map[int64]bool)
	if s.visit {
		return
	}
	order := make([]int, len(s.keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(keyspace.CompareKeys(s.keys[a], s.keys[b]), a-b) })
	for range s.dice.IntN(6) {
		at := s.dice.IntN(len(order) - 3)
		from, to := order[at], order[at+1+s.dice.IntN(3)]
		_, puts := s.puts[s.keys[from].Encode()]
		_, chain := s.puts[s.keys[to].Encode()]
		if s.balances[from] == nil && s.balances[to] == nil && !puts && !chain {
			s.puts[s.keys[from].Encode()] = to
			s.balances[to] = map[int64]bool{int64(to): true}
		}
	}
}

// put returns the balance with which an account is put in a round.
func (s *simulation) put(round, to int) int64 { return int64(1e9)*int64(round) + int64(to) }

// putMate puts the other account, if the function's own account is one that puts another.
func (s *simulation) putMate(a *mapper.Entity[member]) {
	to, ok := s.puts[a.Key.Encode()]
	if !ok {
		return
	}
	s.mu.Lock()
	m := s.members[to]
	m.Balance = s.put(s.round, to)
	s.mu.Unlock()
	a.Put(s.keys[to], &m)
}

// matesPut records which balances the accounts that putMate puts may have after a job. If the job
// was aborted, it may have put only some of them.
func (s *simulation) matesPut(aborted bool) {
	for to, before := range s.balances {
		x := s.put(s.round, to)
		after := map[int64]bool{x: true, x + 10: true}
		if aborted {
			for b := range before {
				after[b], after[b+10] = true, true
			}
		}
		s.balances[to] = after
	}
}

// The second half of this file is about the other job, which runs at the same time in the same
// processes. No death of a process may be blamed on its entities.

const besideID = "beside"

type other struct{ N int64 }

func otherKey(i int) *datastore.Key { return datastore.NameKey("Beside", fmt.Sprintf("b%04d", i), nil) }

// besideMapper returns the mapper of the other job. It adds 1 to each entity, and takes the time
// pace for it.
func besideMapper(pace time.Duration) *mapper.Mapper[mapper.NoParams] {
	return mapper.Update("beside", func(_ context.Context, e *mapper.Entity[other], _ mapper.NoParams) error {
		time.Sleep(pace)
		e.Value.N++
		return nil
	})
}

func (s *simulation) putBeside(n int) {
	for i := range n {
		if _, err := s.client.Put(s.Context(), otherKey(i), new(other)); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *simulation) startBeside() {
	o := &mapper.StartOptions{ID: besideID, AllowEmpty: true, PageSize: 1 + s.rng.IntN(20),
		ExpectedWorkers: 1 + s.rng.IntN(10),
		EntityTimeout:   5 * time.Second}
	s.insist("start another job", s.has(besideID, func(status *mapper.Status) bool { return status != nil }),
		func(ctx context.Context) error {
			_, err := s.beside.Start(ctx, s.fleet.pick().engine, mapper.Query{Kind: "Beside"}, mapper.NoParams{}, o)
			return err
		})
}

// checkBeside checks that the other job has added 1 to each entity once, and has no failures.
func (s *simulation) checkBeside(n int) {
	// The queue of the other job may have been purged.
	s.insist("resume another job", nil, func(ctx context.Context) error {
		return s.fleet.pick().engine.Job(besideID).Resume(ctx)
	})
	status, err := s.waitFor(besideID, 20*time.Hour)
	s.faults.Pause()
	defer s.faults.Resume()
	if err != nil {
		status, err = s.waitFor(besideID, 20*time.Hour)
	}
	if err != nil || status.State != mapper.StateSucceeded || status.Processed != int64(n) {
		failures, _, _ := s.engine.Job(besideID).FailuresPage(s.Context(), "")
		s.Errorf("beside: %+v, %v, %+v", status, err, failures)
	}
	for i := range n {
		var e other
		if err := s.client.Get(s.Context(), otherKey(i), &e); err != nil || e.N != 1 {
			s.Errorf("beside: %v has %d, %v", otherKey(i), e.N, err)
		}
	}
}

// A member is an account with further properties. Queries filter by them, and jobs are sharded by
// them.
type member struct {
	Balance int64
	Owner   string
	Active  bool
	Rank    int64
	Since   time.Time
}

// putMembers puts the accounts. Some have the same rank.
func (s *simulation) putMembers() {
	for i := 0; i < len(s.keys); i += 400 {
		batch := s.keys[i:min(i+400, len(s.keys))]
		members := make([]member, len(batch))
		for j := range members {
			members[j] = member{Balance: int64(i + j), Owner: fmt.Sprint("owner ", i+j), Active: true,
				Rank:  s.rng.Int64N(500) * s.rng.Int64N(1000),
				Since: epoch.Add(time.Duration(s.rng.Int64N(1e9)) * time.Second)}
		}
		s.members = append(s.members, members...)
		if _, err := s.client.PutMulti(s.Context(), batch, members); err != nil {
			s.Fatal(err)
		}
	}
}

// forms are the forms of queries that a simulation may have. Each finds all accounts until the
// function has changed them. A form with a ReadTime always finds the original accounts.
var forms = map[string]mapper.Query{
	"filter": {Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"in": {Filters: []mapper.Filter{{Property: "Active", Op: "in", Value: []any{true, "yes"},
		AllowAnyType: true}}},
	"inequality":       {Filters: []mapper.Filter{mapper.Where("Rank", ">=", 0)}},
	"keys":             {Start: datastore.IDKey("Account", 1, nil)},
	"value":            {ShardBy: "Rank"},
	"value and filter": {ShardBy: "Rank", Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"spaces":           {Kinds: []string{"Account", "Nothing"}, AllNamespaces: true},
	"spaces, filter": {Kinds: []string{"Account", "Nothing"}, Namespaces: []string{"", "n1", "n2", "n3"},
		Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"spaces, value":   {Kinds: []string{"Account", "Nothing"}, AllNamespaces: true, ShardBy: "Rank"},
	"keys only":       {KeysOnly: true},
	"snapshot":        {ReadTime: epoch},
	"snapshot, value": {ReadTime: epoch, ShardBy: "Rank", Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"values":          {ShardBy: "Since", Filters: []mapper.Filter{mapper.Where("Since", ">=", epoch)}},
}

// form chooses the form of the job's query.
func (s *simulation) form() mapper.Query {
	names := slices.Sorted(maps.Keys(forms))
	q, name := forms[names[s.rng.IntN(len(names))]], *formFlag
	if whole := s.rng.IntN(2) == 0; name == "" && whole {
		q = mapper.Query{}
	}
	if name != "" {
		var ok bool
		if q, ok = forms[name]; !ok {
			s.Fatalf("there is no form %q of a query; there are %q", name, names)
		}
	}
	if len(q.Kinds) > 0 {
		for i, k := range s.keys {
			s.keys[i] = inNamespace(k, []string{"", "n1", "n3"}[s.rng.IntN(1+s.rng.IntN(3))])
		}
		return q
	}
	q.Kind = "Account"
	// an Update could not write entities that it has not read, or read as of a past time
	s.visit = s.visit || q.KeysOnly || !q.ReadTime.IsZero()
	if q.Start != nil {
		q.Start = slices.MinFunc(s.keys, keyspace.CompareKeys)
	}
	return q
}

// inNamespace returns the key with another namespace.
func inNamespace(k *datastore.Key, namespace string) *datastore.Key {
	if k == nil {
		return nil
	}
	return &datastore.Key{Kind: k.Kind, ID: k.ID, Name: k.Name, Parent: inNamespace(k.Parent, namespace),
		Namespace: namespace}
}

// keysOf returns n keys of one random form.
func keysOf(rng *rand.Rand, n int) []*datastore.Key {
	shapes := []func(i int) *datastore.Key{
		func(i int) *datastore.Key { return names(i + 1)[i] },
		func(i int) *datastore.Key { return datastore.IDKey("Account", int64(i+1), nil) },
		func(int) *datastore.Key { return datastore.IDKey("Account", 1+rng.Int64N(1<<62), nil) },
		func(int) *datastore.Key {
			return datastore.NameKey("Account", fmt.Sprintf("%08x-%04x", rng.Uint32(), rng.Uint32()>>16), nil)
		},
		func(i int) *datastore.Key {
			group := datastore.NameKey("Group", fmt.Sprint("g", min(rng.IntN(40), 9)), nil)
			return datastore.IDKey("Account", int64(i+1), datastore.IDKey("Branch", 1+rng.Int64N(3), group))
		},
		func(i int) *datastore.Key {
			if i < n/10 {
				return datastore.IDKey("Account", int64(i+1), nil)
			}
			return datastore.NameKey("Account", fmt.Sprintf("2026-%02d/%d", i%12, i), nil)
		},
	}
	shape := shapes[rng.IntN(len(shapes))]
	seen := make(map[string]bool)
	var keys []*datastore.Key
	for i := 0; len(keys) < n; i++ {
		if k := shape(i); !seen[k.String()] {
			seen[k.String()] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// A fate is how the function fails on an account, until the test repairs it.
type fate int

const (
	good   fate = iota
	flaky       // fails a few times
	later       // asks once for a later attempt
	dying       // kills its process twice
	failed      // the following ones never succeed: this one returns errors
	never       // returns permanent errors
	panics      // panics
	hangs       // hangs
	left        // hangs, and its process dies later
	deadly      // kills its process
	fates
)

// fatesOf chooses a few accounts on which the function fails. If more accounts of a page failed,
// the job would fail.
func fatesOf(rng *rand.Rand, keys []*datastore.Key) map[string]fate {
	bad := make(map[string]fate)
	if rng.IntN(4) > 0 {
		bad[keys[rng.IntN(len(keys))].Encode()] = failed
		for range rng.IntN(5) {
			bad[keys[rng.IntN(len(keys))].Encode()] = 1 + fate(rng.IntN(int(fates-1)))
		}
	}
	return bad
}

// function is the function of the mapper, for one account.
func (s *simulation) function(ctx context.Context, a *mapper.Entity[member], p credit) error {
	id := a.Key.Encode()
	s.mu.Lock()
	f, tries, broken := s.fates[id], s.tries[id], s.broken
	s.tries[id]++
	if s.mended {
		f = good
	}
	if s.idempotency[id] == nil {
		s.idempotency[id] = make(map[string]bool)
	}
	s.idempotency[id][a.IdempotencyKey()] = true
	s.mu.Unlock()
	time.Sleep(s.pace)
	if err := a.AwaitCalls(ctx, len(id)%4); err != nil {
		return err
	}
	switch {
	case broken:
		s.breakOnce.Do(func() { s.fleet.stops.freeze(2, 0.2) }) // stop processes while they let the job fail
		return mapper.Permanent(errors.New("broken"))
	case f == flaky && tries < 3, f == failed:
		return errors.New("it fails")
	case f == later && tries == 0:
		return mapper.RetryAfter(errors.New("later"), 10*time.Minute)
	case f == never:
		return mapper.Permanent(errors.New("never"))
	case f == panics:
		panic("it panics")
	case f == hangs:
		time.Sleep(10 * time.Minute)
	case f == left:
		time.Sleep(30 * time.Second)
		return s.fleet.die(ctx)
	case f == dying && tries < 2, f == deadly:
		return s.fleet.die(ctx)
	}
	switch {
	case s.query.KeysOnly && a.Value != (member{}):
		s.Errorf("%v was read: %+v", a.Key, a.Value)
	// other clients add thousands, and change the owner
	case !s.query.ReadTime.IsZero() && (a.Value.Balance >= 1000 || a.Value.Owner == ""):
		s.Errorf("%v differs from the read time's state: %+v", a.Key, a.Value)
	}
	s.putMate(a)
	a.Value.Balance += p.Amount
	a.Value.Active = false
	a.Count("credited", 1)
	a.Count(s.counter(a.Key), int64(len(id)))
	a.CountMin("length", int64(len(id)))
	a.CountMax("length", int64(len(id)))
	return nil
}

// batchFunction is the function of a mapper over batches. It calls function for each account. In
// half of the cases, an error of one account fails the whole batch.
func (s *simulation) batchFunction(ctx context.Context, batch []*mapper.Entity[member], p credit) error {
	for _, a := range batch {
		switch err := s.function(ctx, a, p); {
		case err == nil:
		case s.counter(a.Key)[1:] < "5":
			return err
		default:
			a.Fail(err)
		}
	}
	return nil
}

// counter returns the name of the counter for an account.
func (s *simulation) counter(k *datastore.Key) string {
	h := fnv.New32()
	_, _ = h.Write([]byte(k.Encode()))
	return fmt.Sprint("n", int(h.Sum32())%s.names)
}

// activate changes all accounts so that the query finds them again.
func (s *simulation) activate() {
	for i := 0; i < len(s.keys); i += 400 {
		batch := s.keys[i:min(i+400, len(s.keys))]
		all := make([]datastore.PropertyList, len(batch))
		if err := s.client.GetMulti(s.Context(), batch, all); err != nil {
			s.Fatal(err)
		}
		for _, list := range all {
			for j := range list {
				if list[j].Name == "Active" {
					list[j].Value = true
				}
			}
		}
		_, err := s.client.PutMulti(s.Context(), batch, all)
		// a transaction of a process that has stopped may hold a lock
		for tries := 0; status.Code(err) == codes.Aborted && tries < 10; tries++ {
			time.Sleep(time.Second)
			_, err = s.client.PutMulti(s.Context(), batch, all)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}
