package protocol_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// impatient returns the settings of a queue that delivers n tasks at once and retries failed tasks
// soon.
func impatient(n int32) *cloudtaskspb.Queue {
	q := few(n)
	q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(time.Second)}
	return q
}

// TestStorm lets one job kill processes again and again, while another job's entity or finalizer
// runs in the same processes. None of these deaths may be blamed on the other job.
func TestStorm(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	testflag.Simulate(t, 1, 1, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { rage(t, rand.New(rand.NewPCG(seed, 0))) })
	})
}

func rage(t *testing.T, rng *rand.Rand) {
	var f *fleet
	var mended atomic.Bool
	die := func(ctx context.Context) error {
		if mended.Load() {
			return nil
		}
		return f.die(ctx)
	}
	// The first job kills processes either by strays, which are calls of its function that were
	// abandoned, or by its finalizer.
	strays := rng.IntN(2) == 0
	after := 6*time.Second + time.Duration(rng.IntN(4000))*time.Millisecond // longer than the job's EntityTimeout
	storm := mapper.Visit("storm", func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
		if !strays || mended.Load() {
			return nil
		}
		time.Sleep(after)
		return die(ctx)
	}).WithFinalizer(func(ctx context.Context, _ *mapper.Completion, _ mapper.NoParams) error { return die(ctx) })
	// The other job takes longer than the time between two deaths.
	pace := after + time.Second
	var ends atomic.Int64
	innocent := mapper.Visit("innocent", func(context.Context, *mapper.Entity[other], mapper.NoParams) error {
		time.Sleep(pace)
		return nil
	}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		time.Sleep(pace)
		d.Put(reportKey, &report{Jobs: ends.Add(1)})
		return nil
	})
	entities, concurrent := 1, int32(3)
	if strays { // most strays exist before the other job's task runs
		entities, concurrent = 400, 12
	}
	w := newWorld(t, setting{queue: impatient(concurrent)}, storm, innocent)
	f = newFleet(w, rng.Uint64(), 1, storm, innocent)
	w.putAccounts(names(entities))
	others := rng.IntN(3) // with 0, the finalizer runs alone
	for i := range others {
		if _, err := w.client.Put(t.Context(), otherKey(i), new(other)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(m *mapper.Mapper[mapper.NoParams], kind string, timeout time.Duration) *mapper.Job {
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: kind}, mapper.NoParams{},
			&mapper.StartOptions{AllowEmpty: true, PageSize: 1, ExpectedWorkers: 100, EntityTimeout: timeout,
				FailureLimit: -1})
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	beside := start(innocent, "Beside", 20*time.Second)
	time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	job := start(storm, "Account", 2*time.Second)
	for range 150 {
		time.Sleep(time.Duration(1000+rng.IntN(2000)) * time.Millisecond)
		// its finalizer has made the job fail
		if s, err := job.Status(t.Context()); err == nil && s.State == mapper.StateFailed {
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range []string{record.JobKind, record.RangeKind} {
		var all []datastore.PropertyList
		keys, err := w.client.GetAll(t.Context(), datastore.NewQuery(kind), &all)
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			if deaths := propertyOf(all[i], "deaths"); deaths != nil && strings.Contains(k.Name, beside.ID) {
				t.Errorf("strays: %v; %s is blamed for the deaths %v", strays, k.Name, deaths)
			}
		}
	}
	mended.Store(true)
	s, err := beside.Wait(t.Context())
	failures, _, _ := beside.FailuresPage(t.Context(), "")
	if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(others) {
		t.Errorf("strays: %v; %d processes died; %+v, %+v, %v", strays, f.deaths(), s, failures, err)
	}
	if f.deaths() < 2*mapper.MaxDeaths {
		t.Errorf("strays: %v; %d processes died", strays, f.deaths())
	}
	for s, err = job.Wait(t.Context()); err == nil && s.State == mapper.StateFailed; s, err = job.Wait(t.Context()) {
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil {
		t.Error(err)
	}
	var r report
	if err := w.client.Get(t.Context(), reportKey, &r); err != nil {
		t.Errorf("the finalizer: %+v, %v", r, err)
	}
}

// TestStormBehind lets an entity and a finalizer fail, and kills their processes by other causes
// each time that they run again. By then, no record shows any more that they ran alone when the
// first process died.
func TestStormBehind(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	latencies := []time.Duration{20 * time.Millisecond, 0}[:testflag.Size(t, 1, 1, 2)]
	for _, finalizes := range []bool{false, true} {
		for _, slow := range latencies {
			synctest.Test(t, func(t *testing.T) { behind(t, finalizes, slow) })
		}
	}
}

func behind(t *testing.T, finalizes bool, slow time.Duration) {
	var f *fleet
	var once sync.Map
	storm := mapper.Visit("storm", func(ctx context.Context, _ *mapper.Entity[account], p credit) error {
		if _, killed := once.LoadOrStore(p.Amount, true); killed {
			return nil
		}
		return f.die(ctx)
	})
	var calls atomic.Int64
	fails := func(ctx context.Context) error {
		if n := calls.Add(1); n == 2 || n == 3 { // so that the entity is suspected of killing its process
			f.killAny()
			return ctx.Err()
		}
		time.Sleep(5 * time.Second)
		return errors.New("a service that it needs is down")
	}
	innocent := mapper.Visit("innocent", func(ctx context.Context, _ *mapper.Entity[other], _ mapper.NoParams) error {
		if finalizes {
			return nil
		}
		return fails(ctx)
	}).WithFinalizer(func(ctx context.Context, _ *mapper.Completion, _ mapper.NoParams) error {
		if finalizes {
			return fails(ctx)
		}
		return nil
	})
	injected := faults.New(1)
	if slow > 0 {
		injected = faults.New(1, faults.Rule{Kind: faults.SlowCall, Methods: []string{"Commit"},
			Latency: faults.Constant(slow)})
	}
	w := newWorld(t, setting{queue: impatient(8), emulator: emulator.Options{Faults: injected}}, storm, innocent)
	f = newFleet(w, 1, 1, storm, innocent)
	w.putAccounts(names(1))
	if _, err := w.client.Put(t.Context(), otherKey(0), new(other)); err != nil {
		t.Fatal(err)
	}
	beside, err := innocent.Start(t.Context(), w.engine, mapper.Query{Kind: "Beside"}, mapper.NoParams{},
		&mapper.StartOptions{PageSize: 1, Retries: mapper.RetryPolicy{MaxAttempts: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for calls.Load() < 3 {
		time.Sleep(100 * time.Millisecond)
	}
	var all []*mapper.Job
	for i := range int64(100) {
		job, err := storm.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{i},
			&mapper.StartOptions{PageSize: 1, ExpectedWorkers: 1, AllowOverlap: true})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, job)
		time.Sleep(time.Second)
	}
	for _, job := range all {
		w.wait(job)
	}
	s, err := beside.Status(t.Context())
	failures, _, _ := beside.FailuresPage(t.Context(), "")
	for _, failure := range failures {
		s.Error += failure.Error
	}
	if err != nil || !strings.HasSuffix(s.Error, "a service that it needs is down") {
		t.Errorf("a finalizer: %v, commits take %v; %d processes died; %+v, %+v, %v", finalizes, slow, f.deaths(), s,
			failures, err)
	}
	if !s.State.Ended() {
		if err := beside.Abort(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestDeadlyEndOfTasks runs a finalizer that kills its process, in a queue that delivers each task
// only once. So each delivery is of a new task, which a sweep has enqueued.
func TestDeadlyEndOfTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f *fleet
		m := mapper.Visit("report", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		}).
			WithFinalizer(func(ctx context.Context, _ *mapper.Completion, _ mapper.NoParams) error {
				return f.die(ctx)
			})
		once := few(20)
		once.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: 1}
		w := newWorld(t, setting{queue: once}, m)
		f = newFleet(w, 1, 2, m)
		w.putAccounts(names(100))
		s := over(w, m, nil)
		if s.State != mapper.StateFailed ||
			!strings.HasPrefix(s.Error, "the process died 5 times while it did nothing but the finalizer") ||
			f.deaths() > 50 {
			t.Errorf("%d processes died; %+v", f.deaths(), s)
		}
	})
}

// TestDeadlyEnd runs a finalizer that kills its process several times, or always. After five deaths
// while it ran alone, the job must fail with this cause. After the test has repaired the finalizer,
// Resume must end the job, with as many attempts as before.
func TestDeadlyEnd(t *testing.T) {
	t.Parallel()
	for _, deaths := range []int64{1, 3, 1000} {
		synctest.Test(t, func(t *testing.T) {
			var f *fleet
			var runs atomic.Int64
			ends := 0
			m := mapper.Update("report", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				a.Value.Balance += 10
				return nil
			}).WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
				if runs.Add(1) <= deaths {
					return f.die(ctx)
				}
				ends++
				d.Put(reportKey, &report{Jobs: int64(ends)})
				return nil
			})
			w := newWorld(t, setting{queue: impatient(20)}, m)
			f = newFleet(w, 1, 2, m)
			w.putAccounts(names(100))
			s := over(w, m, &mapper.StartOptions{ID: "j", PageSize: 10})
			if deaths < mapper.MaxDeaths {
				if s.State != mapper.StateSucceeded || s.Error != "" || ends != 1 {
					t.Errorf("%d deaths: %+v, %d ends", deaths, s, ends)
				}
				return
			}
			if s.State != mapper.StateFailed ||
				!strings.HasPrefix(s.Error, "the process died 5 times while it did nothing but the finalizer") ||
				s.Processed != 100 {
				t.Errorf("status %+v", s)
			}
			// the first death does not count, because other work ran in the process
			if n := runs.Swap(deaths - 4); n != 6 {
				t.Errorf("the finalizer ran %d times", n)
			}
			job := w.engine.Job("j")
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != 100 || ends != 1 {
				t.Errorf("status %+v, %d ends", s, ends)
			}
			w.wantBalances(names(100), 10)
		})
	}
}
