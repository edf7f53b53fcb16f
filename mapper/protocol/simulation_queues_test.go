package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestRingSimulation lets schedules and operators act in several processes, with all kinds of
// faults. Operators start, pause, resume, abort, retry, move and slow down jobs of one mapper over
// two kinds. They clean up jobs, also with the job's own record, and repeat starts. No two jobs may
// run at the same time over one kind, unless their options allow it. No tick may be lost or decided
// twice. No job may credit an account twice. At the end, every job that can continue must have
// ended.
func TestRingSimulation(t *testing.T) {
	testflag.Simulate(t, 2, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulateRing(t, seed) })
	})
}

// ringKinds are the two kinds of accounts.
var ringKinds = []string{"RingA", "RingB"}

// A ringAccount is an account that records which jobs have credited it, one name for each credit.
// The name has the job's ID and the idempotency key, which differs in another job with the same ID.
type ringAccount struct {
	N    int64
	Jobs []string `datastore:",noindex"`
}

type ringParams struct{ Job string }

// A ring is one run of TestRingSimulation: the schedules and jobs of one seed.
type ring struct {
	*world
	rng       *rand.Rand
	faults    *faults.Faults
	fleet     *fleet
	mapper    *mapper.Mapper[ringParams]
	schedules []*mapper.Schedule[ringParams]
	jobs      ringJobs
	n         int // number of accounts of each kind
	late      sync.WaitGroup

	mu     sync.Mutex
	ids    []string             // IDs of jobs that may have been started
	mended map[string]bool      // jobs whose function no longer fails
	erased map[string]bool      // jobs that an operator may have cleaned up
	starts map[string]ringStart // the arguments of manual starts, by job ID
	ticks  map[string][]outcome // the answers to ticks, by the ID of their run
	at     map[string]ringTick
	dice   *rand.Rand
}

// A ringTick has the arguments of a call of Tick.
type ringTick struct {
	schedule *mapper.Schedule[ringParams]
	at       time.Time
	query    mapper.Query
	options  mapper.StartOptions
}

// A ringStart has the arguments of a manual start.
type ringStart struct {
	query   mapper.Query
	options mapper.StartOptions
}

// An outcome is the answer to a call of Tick.
type outcome struct {
	what mapper.TickOutcome
	job  string
}

func simulateRing(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 30))
	r := &ring{
		rng: rng, faults: faults.New(seed, trouble(rng)...), n: 20 + rng.IntN(60),
		mended: make(map[string]bool), erased: make(map[string]bool), starts: make(map[string]ringStart),
		ticks: make(map[string][]outcome), at: make(map[string]ringTick), dice: rand.New(rand.NewPCG(seed, 31)),
	}
	r.faults.Pause()
	pace := time.Duration(math.Pow(100, rng.Float64()) * float64(10*time.Millisecond))
	r.mapper = mapper.Update("ringed", func(ctx context.Context, e *mapper.Entity[ringAccount], p ringParams) error {
		time.Sleep(pace)
		r.mu.Lock()
		fails := e.Value.N%23 == 7 && !r.mended[p.Job]
		r.mu.Unlock()
		if fails {
			return mapper.Permanent(errors.New("seven"))
		}
		e.Value.Jobs = append(e.Value.Jobs, p.Job+" "+e.IdempotencyKey())
		return nil
	})
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		r.schedules = append(r.schedules, mapper.NewSchedule(string(overlap), r.mapper, overlap))
	}
	r.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: r.faults, PessimisticConcurrency: rng.IntN(3) == 0,
			Interceptor: r.jobs.intercept,
			Retention:   60 * 24 * time.Hour},
		queue: few(int32(1 + rng.IntN(8))), deadline: time.Duration(60+rng.IntN(600)) * time.Second,
		plain: rng.IntN(2) == 0,
	}, r.mapper)
	queues := r.tasksClient()
	_, err := queues.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: otherQueue}})
	r.must(err)
	r.more = func(o *mapper.EngineOptions) {
		for _, s := range r.schedules {
			o.Schedules = append(o.Schedules, s)
		}
	}
	r.others = []string{otherQueue}
	r.clocks = time.Duration(rng.IntN(2)*rng.IntN(10)) * time.Minute
	r.fleet = newFleet(r.world, seed, 1+rng.IntN(4), r.mapper)
	r.fleet.fails.Store(true)
	r.fleet.zombies = rng.Float64() / 3
	r.fleet.stops.most = 4 * time.Hour
	for _, kind := range ringKinds {
		keys, all := make([]*datastore.Key, r.n), make([]ringAccount, r.n)
		for i := range keys {
			keys[i], all[i].N = datastore.NameKey(kind, fmt.Sprintf("%s-%03d", kind, i), nil), int64(i)
		}
		_, err := r.client.PutMulti(t.Context(), keys, all)
		r.must(err)
	}

	r.faults.Resume()
	r.fleet.stops.allow(rng.IntN(8), math.Pow(1000, -rng.Float64()))
	r.fleet.stops.freeze(rng.IntN(3), math.Pow(1000, -rng.Float64()))
	r.fleet.stops.kill(rng.IntN(4), 0.1*math.Pow(1000, -rng.Float64()))
	var people sync.WaitGroup
	for i, s := range r.schedules {
		rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
		people.Go(func() { r.tickAway(rng, s) })
	}
	for i, who := range []func(*rand.Rand){r.starter, r.starter, r.operator, r.operator, r.operator, r.platform} {
		rng := rand.New(rand.NewPCG(seed, uint64(200+i)))
		people.Go(func() { who(rng) })
	}
	people.Wait()
	r.end()
	r.check()
	again := 0
	for _, runs := range r.jobs.runs {
		again += len(runs) - 1
	}
	t.Logf("%d jobs (%d cleaned up), and %d more of the same IDs, %d ticks; %d processes died, %d were "+
		"stopped; went wrong: %v", len(r.jobs.last), len(r.erased), again, len(r.ticks), r.fleet.deaths(),
		r.fleet.stops.count, r.faults.Counts())
}

// draw draws a number below n, for one of the operators.
func (r *ring) draw(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dice.IntN(n)
}

// ask lets a random process make a call for an operator. In every third case the process dies or
// freezes at one of its calls. If the call fails, ask repeats it, up to the given number of
// attempts.
func (r *ring) ask(times int, do func(context.Context, *mapper.Engine) error) (err error) {
	for range times {
		p, ctx := r.fleet.pick(), r.Context()
		if r.draw(3) == 0 {
			m := &mishap{happen: r.fleet.kill, after: r.draw(25)}
			if r.draw(2) == 0 {
				m.happen = r.fleet.freeze
			}
			ctx = m.with(ctx)
		}
		answered := make(chan error, 1)
		r.late.Go(func() { answered <- do(ctx, p.engine) })
		select {
		case err = <-answered:
		case <-time.After(time.Duration(1+r.draw(600)) * time.Second):
			// The operator stops waiting, but the call may take effect later.
			err = context.DeadlineExceeded
		}
		if r.draw(4) == 0 {
			r.fleet.thaw()
		}
		if err == nil || errors.Is(err, mapper.ErrWrongState) || errors.Is(err, mapper.ErrNoSuchJob) ||
			errors.Is(err, mapper.ErrInvalidArgument) {
			return err
		}
		time.Sleep(time.Second)
	}
	return err
}

// query draws a random query of a job.
func (r *ring) query(rng *rand.Rand) mapper.Query {
	if i := rng.IntN(3); i < 2 {
		return mapper.Query{Kind: ringKinds[i]}
	}
	return mapper.Query{Kinds: ringKinds}
}

// options draws random options of a job.
func (r *ring) options(rng *rand.Rand) (o mapper.StartOptions) {
	o = mapper.StartOptions{PageSize: 2 + rng.IntN(20), ExpectedWorkers: 1 + rng.IntN(8), FailureLimit: -1,
		AllowOverlap: rng.IntN(5) == 0}
	if rng.IntN(3) == 0 {
		o.Queue = otherQueue
	}
	if rng.IntN(4) == 0 {
		o.Budget.Operations = int64(2500 + rng.IntN(2000))
	}
	return o
}

// known records that a job with this ID may exist.
func (r *ring) known(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.ids, id) {
		r.ids = append(r.ids, id)
	}
}

// tickAway calls the ticks of a schedule in order. It makes some calls twice at the same time,
// late, or again much later.
func (r *ring) tickAway(rng *rand.Rand, s *mapper.Schedule[ringParams]) {
	for i := range 2 + rng.IntN(5) {
		time.Sleep(time.Duration(math.Pow(10_000, rng.Float64()) * float64(30*time.Millisecond)))
		tick := ringTick{s, minute(i + 1), r.query(rng), r.options(rng)}
		id := s.JobID(tick.at)
		r.known(id)
		r.mu.Lock()
		r.at[id] = tick
		r.mu.Unlock()
		var callers sync.WaitGroup
		for range 1 + rng.IntN(2) {
			callers.Go(func() {
				_ = r.ask(20, func(ctx context.Context, e *mapper.Engine) error { return r.tick(ctx, e, tick) })
			})
		}
		if rng.IntN(3) == 0 && i > 0 {
			r.mu.Lock()
			before := r.at[s.JobID(minute(1+rng.IntN(i)))]
			r.mu.Unlock()
			callers.Go(func() {
				_ = r.ask(1, func(ctx context.Context, e *mapper.Engine) error { return r.tick(ctx, e, before) })
			})
		}
		if rng.IntN(2) == 0 {
			callers.Wait()
		}
		r.late.Go(callers.Wait)
	}
}

// tick calls Tick, and records the answer.
func (r *ring) tick(ctx context.Context, e *mapper.Engine, tick ringTick) error {
	id := tick.schedule.JobID(tick.at)
	got, err := tick.schedule.Tick(ctx, e, tick.at, tick.query, ringParams{id}, &tick.options)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticks[id] = append(r.ticks[id], outcome{got.Outcome, got.Job.ID})
	return nil
}

// starter simulates an operator who starts jobs.
func (r *ring) starter(rng *rand.Rand) {
	for range rng.IntN(5) {
		time.Sleep(time.Duration(math.Pow(10_000, rng.Float64()) * float64(10*time.Millisecond)))
		q, o := r.query(rng), r.options(rng)
		o.ID = fmt.Sprint("hand-", rng.Uint32())
		r.known(o.ID)
		r.mu.Lock()
		r.starts[o.ID] = ringStart{q, o}
		r.mu.Unlock()
		_ = r.ask(5, func(ctx context.Context, e *mapper.Engine) error {
			_, err := r.mapper.Start(ctx, e, q, ringParams{o.ID}, &o)
			return err
		})
	}
}

// operator simulates an operator who controls jobs.
func (r *ring) operator(rng *rand.Rand) {
	for range rng.IntN(30) {
		time.Sleep(time.Duration(math.Pow(1000, rng.Float64()) * float64(20*time.Millisecond)))
		r.mu.Lock()
		if len(r.ids) == 0 {
			r.mu.Unlock()
			continue
		}
		id := r.ids[rng.IntN(len(r.ids))]
		what := rng.IntN(13)
		if what == 3 {
			r.mended[id] = true
		}
		if what >= 11 {
			r.erased[id] = true
		}
		again, byHand := r.starts[id]
		r.mu.Unlock()
		cleanUp := []*mapper.CleanUpOptions{{IncludeJob: true}, {IncludeJob: true}, {IncludeFailures: true}, nil,
			{ExpireAfter: 24 * time.Hour}}[rng.IntN(5)]
		rate, d := mapper.Rate{EntitiesPerSecond: 20 + 100*rng.Float64()}, time.Duration(1+rng.IntN(3600))*time.Second
		_ = r.ask(1+rng.IntN(3), func(ctx context.Context, e *mapper.Engine) error {
			job := e.Job(id)
			switch what {
			case 0, 1:
				return job.Pause(ctx)
			case 2, 4:
				return job.Resume(ctx)
			case 3, 5:
				return job.Retry(ctx, nil)
			case 6, 7:
				return job.Move(ctx)
			case 8:
				return job.Abort(ctx)
			case 10:
				if byHand {
					_, err := r.mapper.Start(ctx, e, again.query, ringParams{id}, &again.options)
					return err
				}
				return nil
			case 11, 12:
				return job.CleanUp(ctx, cleanUp)
			}
			return job.SetRateFor(ctx, rate, d)
		})
	}
}

// platform simulates a platform that sometimes ends processes.
func (r *ring) platform(rng *rand.Rand) {
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.IntN(60_000)) * time.Millisecond)
		if rng.IntN(2) == 0 {
			r.fleet.killAny()
			continue
		}
		// the time to drain may be too short
		_ = r.fleet.drain(r.fleet.pick(), time.Duration(rng.IntN(10_000))*time.Millisecond)
	}
}

// end brings everything to an end. It waits for late calls and tasks, resumes paused and failed
// jobs, and calls ReviveJobs as a scheduler does.
func (r *ring) end() {
	for range 30 { // until all calls are answered, because processes may stop for hours
		r.fleet.thaw()
		time.Sleep(10 * time.Minute)
	}
	r.faults.Pause()
	r.fleet.stops.calm()
	r.fleet.wake()
	late := true // whether calls, tasks and processes of hours ago may still change a job
	for range 300 {
		r.fleet.thaw()
		time.Sleep(10 * time.Minute)
		unfinished := 0
		for _, id := range r.ids {
			status, err := r.engine.Job(id).Status(r.Context())
			switch {
			case errors.Is(err, mapper.ErrNoSuchJob):
				continue
			case err != nil:
				r.Fatal(err)
			case !status.State.Ended() || status.State == mapper.StateFailed:
				unfinished++
			}
			e := r.fleet.pick().engine
			if status.State == mapper.StatePaused || status.State == mapper.StateFailed {
				if err := e.Job(id).Resume(r.Context()); err != nil && !errors.Is(err, mapper.ErrWrongState) {
					r.Fatalf("resume %s: %v", id, err)
				}
			}
		}
		r.must(r.fleet.pick().engine.ReviveJobs(r.Context()))
		switch ended := unfinished == 0 && !r.waiting(); {
		case ended && !late:
			return
		case ended:
			r.late.Wait()
			time.Sleep(24 * time.Hour) // until late tasks have come and all processes have continued
			late = false
		}
	}
	for _, id := range r.ids {
		status, err := r.engine.Job(id).Status(r.Context())
		r.Logf("%s: %+v, %v", id, status, err)
	}
	r.Fatalf("ticks still wait, or jobs do not end: %v", r.ticks)
}

// waiting reports whether a tick waits.
func (r *ring) waiting() bool {
	for _, s := range r.schedules {
		var list datastore.PropertyList
		name := strings.TrimSuffix(s.JobID(midnight), midnight.Format("-20060102T150405Z"))
		err := r.client.Get(r.Context(), datastore.NameKey("ScattermapSchedule", name, nil), &list)
		if queued, _ := propertyOf(list, "queued").([]byte); err == nil && len(queued) > 0 {
			return true
		}
	}
	return false
}

// check checks the final state of the accounts, jobs and ticks.
func (r *ring) check() {
	states := make(map[string]*mapper.Status)
	for _, id := range r.ids {
		job := r.engine.Job(id)
		status, err := job.Status(r.Context())
		if errors.Is(err, mapper.ErrNoSuchJob) {
			continue
		}
		r.must(err)
		states[id] = status
		proof, err := job.Verify(r.Context(), nil)
		if r.erased[id] && errors.Is(err, mapper.ErrWrongState) {
			continue // the job's records are cleaned up
		}
		if err != nil || len(proof.Problems) > 0 {
			r.Errorf("%s: %+v, %v", id, proof, err)
		}
	}
	r.checkAccounts(states)
	r.checkTicks(states)
	r.jobs.check(r.T)
}

// checkAccounts checks that no job has credited an account twice, and that jobs that have succeeded
// have credited all.
func (r *ring) checkAccounts(states map[string]*mapper.Status) {
	credited := make(map[string]int) // number of credits, by job
	for _, kind := range ringKinds {
		var all []ringAccount
		keys, err := r.client.GetAll(r.Context(), datastore.NewQuery(kind), &all)
		r.must(err)
		for i, a := range all {
			slices.Sort(a.Jobs)
			if once := slices.Compact(slices.Clone(a.Jobs)); len(once) != len(a.Jobs) {
				r.Errorf("%v was credited twice by a job: %v", keys[i], a.Jobs)
			}
			for _, name := range a.Jobs {
				id, _, _ := strings.Cut(name, " ")
				credited[id]++
			}
		}
	}
	for id, n := range credited {
		if states[id] == nil && !r.erased[id] {
			r.Errorf("%d accounts were credited by %s, which there is not", n, id)
		}
	}
	for id, s := range states {
		want := r.n * max(1, len(s.Query.Kinds))
		done := int64(credited[id]) == s.Processed
		switch s.State {
		case mapper.StateSucceeded:
			done = done && credited[id] == want
		case mapper.StateSucceededWithFailures:
			done = done && credited[id]+int(s.Failures) == want
		case mapper.StateAborted:
			done = credited[id] <= want
		default:
			done = false
		}
		if n := len(r.jobs.runs[id]); n > 1 { // jobs with this ID were cleaned up, and another one was started
			done = s.State.Ended() && s.State != mapper.StateFailed && s.Processed <= int64(min(want, credited[id])) &&
				credited[id] <= n*want
		}
		if !done {
			r.Errorf("%s has credited %d of %d accounts: %+v", id, credited[id], want, s)
		}
	}
}

// checkTicks checks that each tick has had only one outcome, and that it still has it.
func (r *ring) checkTicks(states map[string]*mapper.Status) {
	for id, tick := range r.at {
		if len(r.ticks[id]) == 0 {
			continue // it is unknown whether Tick was called
		}
		r.must(r.tick(r.Context(), r.fleet.pick().engine, tick))
		var final outcome
		for _, o := range r.ticks[id] {
			// answers may be recorded in another order than they were given
			if o.what == mapper.TickQueued {
				continue
			}
			if final.what != "" && o.what != final.what || o.what == mapper.TickStarted && o.job != id {
				r.Errorf("tick %s was %v", id, r.ticks[id])
			}
			final = o
		}
		last := r.ticks[id][len(r.ticks[id])-1]
		started, there := final.what == mapper.TickStarted, states[id] != nil
		if last != final || started && !there && !r.erased[id] || !started && there {
			r.Errorf("tick %s was %v, and its job is %+v", id, r.ticks[id], states[id])
		}
	}
}

// ringJobs records how each commit has changed the records of jobs. It observes the emulator
// itself, without the injected faults.
type ringJobs struct {
	mu   sync.Mutex
	all  []ringJob
	last map[string]bool
	cost map[string]float64 // the cost of committed pages in operations, by job ID
	// the incarnations (random numbers that distinguish jobs with the same ID), by job ID
	runs map[string]map[string]bool
}

// A ringJob is the record of a job after a commit.
type ringJob struct {
	id, mapper, state, schedule string
	kinds                       []string
	beside                      bool
	at                          int64
	spent, budget               float64
	allowances                  int64
}

func (j *ringJobs) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	committed, ok := resp.(*datastorepb.CommitResponse)
	if !ok || err != nil {
		return resp, err
	}
	at := commitTime(committed).AsTime().UnixMicro()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == nil {
		j.last, j.cost, j.runs = make(map[string]bool), make(map[string]float64), make(map[string]map[string]bool)
	}
	for _, m := range req.(*datastorepb.CommitRequest).Mutations {
		e := m.GetInsert()
		if e == nil {
			e = m.GetUpdate()
		}
		if e == nil {
			continue
		}
		text := func(name string) string { return e.Properties[name].GetStringValue() }
		switch e.Key.Path[0].Kind {
		case record.JobKind:
			var q struct {
				Kind  string
				Kinds []string
			}
			var b struct{ Operations float64 }
			_ = json.Unmarshal(e.Properties["query"].GetBlobValue(), &q)
			_ = json.Unmarshal(e.Properties["budget"].GetBlobValue(), &b)
			id := e.Key.Path[0].GetName()
			j.last[id] = true
			if j.runs[id] == nil {
				j.runs[id] = make(map[string]bool)
			}
			j.runs[id][text("incarnation")] = true
			j.all = append(j.all, ringJob{
				id: id, mapper: text("mapper"), state: text("state"), schedule: text("schedule"),
				kinds:  append(q.Kinds, q.Kind),
				beside: e.Properties["beside"].GetBooleanValue(), at: at, spent: e.Properties["spent"].GetDoubleValue(),
				budget:     b.Operations,
				allowances: e.Properties["allowance"].GetIntegerValue(),
			})
		case record.RangeKind:
			if n := e.Properties["entities"].GetIntegerValue(); text("state") == "done" && n > 0 {
				j.cost[text("job")] += float64(n + e.Properties["written"].GetIntegerValue() + 7)
			}
		}
	}
	return resp, err
}

// An interval is a period in which a condition held.
type interval struct {
	job      ringJob
	from, to int64
}

// intervals returns the periods in which a condition held for the records of jobs.
func (j *ringJobs) intervals(so func(ringJob) bool) (all []interval) {
	open := make(map[string]int)
	for _, job := range j.all {
		i, is := open[job.id]
		switch {
		case so(job) && !is:
			open[job.id] = len(all)
			all = append(all, interval{job, job.at, math.MaxInt64})
		case !so(job) && is:
			all[i].to = job.at
			delete(open, job.id)
		}
	}
	return all
}

// check checks that no two jobs have run at the same time that must not, that runs of a schedule
// did not overlap, and that budgets were kept.
func (j *ringJobs) check(t *testing.T) {
	slices.SortStableFunc(j.all, func(a, b ringJob) int { return int(a.at - b.at) })
	running := j.intervals(func(job ringJob) bool { return job.state == "running" && !job.beside })
	unfinished := j.intervals(func(job ringJob) bool {
		return job.schedule != "" && (job.state == "running" || job.state == "paused")
	})
	both := func(a, b interval) bool { return a.job.id != b.job.id && a.from < b.to && b.from < a.to }
	for i, a := range running {
		for _, b := range running[:i] {
			shared := slices.ContainsFunc(a.job.kinds, func(kind string) bool {
				return kind != "" && slices.Contains(b.job.kinds, kind)
			})
			if both(a, b) && shared && a.job.mapper == b.job.mapper {
				t.Errorf("%s and %s run at once: %+v, %+v", a.job.id, b.job.id, a, b)
			}
		}
	}
	for i, a := range unfinished {
		for _, b := range unfinished[:i] {
			if both(a, b) && a.job.schedule == b.job.schedule {
				t.Errorf("%s and %s are unfinished at once: %+v, %+v", a.job.id, b.job.id, a, b)
			}
		}
	}
	for _, job := range j.all {
		if job.spent < 0 || job.spent > 1+1e-9 {
			t.Errorf("%s has spent %v of its budget", job.id, job.spent)
		}
	}
	last := make(map[string]ringJob)
	for _, job := range j.all {
		last[job.id] = job
	}
	for id, job := range last {
		if most := job.budget * float64(len(j.runs[id])*(1+int(job.allowances))); job.budget > 0 && j.cost[id] > most {
			t.Errorf("the pages of %s have cost %v operations, of %v", id, j.cost[id], most)
		}
	}
}
