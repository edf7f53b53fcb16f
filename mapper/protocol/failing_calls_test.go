package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	night "github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// sparse is the distance between the calls that fail for one seed. With seed s, these are the calls
// s, s+60, s+120 and so on, and each fails in a run of its own. So 60 successive seeds cover all
// calls.
const sparse = 60

// TestEachCallFails runs several stories. A story is a sequence of calls on jobs. In each run, one
// call of Datastore fails. Either the database refuses it, or carries it out and the answer is
// lost. Each story must end as without the failure.
func TestEachCallFails(t *testing.T) {
	testflag.Sequential(t)
	testflag.Simulate(t, 1, 1, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		for _, s := range stories {
			t.Run(s.name, func(t *testing.T) {
				testflag.SideBySide(t)
				for _, lose := range ways(s.name, seed) {
					for at := int(seed % sparse); ; at += sparse {
						failed := false // stays false also if -run leaves out the subtest
						ok := t.Run(fmt.Sprintf("call %d, answer lost %t", at, lose), func(t *testing.T) {
							f := &failing{at: at, lose: lose, code: codes.Internal}
							synctest.Test(t, func(t *testing.T) { failed = tell(t, s, f) })
						})
						if !ok || !failed {
							break
						}
					}
				}
			})
		}
	})
}

// ways returns the ways in which the calls of a story fail: refused, or with a lost answer (true).
// A usual run has one way for each story. The seed chooses it.
func ways(story string, seed uint64) []bool {
	if night.Is() || *testflag.Seeds > 0 {
		return []bool{false, true}
	}
	return []bool{(uint64(len(story))+seed/sparse)%2 == 0}
}

// A failing is an interceptor that makes one call of the database or the queue fail.
type failing struct {
	at   int        // number of calls before the one that fails
	lose bool       // whether the call is carried out, and only its answer is lost
	code codes.Code // of the error

	mu    sync.Mutex
	armed bool
	calls int
}

// arm starts or stops counting calls. A call can only fail while calls are counted.
func (f *failing) arm(armed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = armed
}

// failed reports whether the call has failed.
func (f *failing) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls > f.at
}

func (f *failing) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	f.mu.Lock()
	now := f.armed && f.calls == f.at
	if f.armed {
		f.calls++
	}
	f.mu.Unlock()
	if !now {
		return handler(ctx, req)
	}
	if f.lose {
		if _, err := handler(ctx, req); err != nil {
			return nil, err
		}
	}
	return nil, status.Error(f.code, "injected")
}

// A story is a sequence of calls on jobs, as people make them, and checks of the final state.
type story struct {
	name    string
	mappers []mapper.AnyMapper
	tell    func(s *telling)
}

// A telling is one run of a story, in which one call of the database fails.
type telling struct {
	*world
	*failing
}

// tell runs a story, and reports whether the call that was to fail was reached.
func tell(t *testing.T, s story, f *failing) bool {
	w := newWorld(t, setting{
		emulator: emulator.Options{Interceptor: f.intercept, PointInTimeRecovery: true}, queue: few(1),
	}, s.mappers...)
	bridge.Seed(w.engine, 1)
	s.tell(&telling{world: w, failing: f})
	f.arm(false)
	return f.failed()
}

// do makes a call on a job as a person would: it repeats the call after an error. If taken is not
// nil, it reports whether the call has taken effect although its answer was lost.
func (s *telling) do(what string, taken func() bool, do func(context.Context) error) {
	s.Helper()
	var err error
	for range 5 {
		s.arm(true)
		if err = do(s.Context()); err == nil {
			return
		}
		if s.arm(false); taken != nil && taken() {
			s.arm(true)
			return
		}
		time.Sleep(time.Minute)
	}
	s.Fatalf("%s: %v", what, err)
}

// calmly runs a part of the story without injected failures, such as a check of the result.
func (s *telling) calmly(look func()) {
	s.arm(false)
	look()
	s.arm(true)
}

// state returns a function that reports whether a job is in a state.
func (s *telling) state(id string, want mapper.State) func() bool {
	return func() bool {
		status, err := s.engine.Job(id).Status(s.Context())
		return err == nil && status.State == want
	}
}

// begin starts a job over the accounts.
func (s *telling) begin(m *mapper.Mapper[credit], o mapper.StartOptions) *mapper.Job {
	s.Helper()
	o.PageSize, o.ExpectedWorkers = 5, 3
	s.do("start", nil, func(ctx context.Context) error {
		_, err := m.Start(ctx, s.engine, mapper.Query{Kind: "Account"}, credit{10}, &o)
		return err
	})
	return s.engine.Job(o.ID)
}

// await waits for the end of a job, and returns its status.
func (s *telling) await(job *mapper.Job) (is *mapper.Status) {
	s.Helper()
	s.do("wait for "+job.ID, nil, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
		defer cancel()
		is, err = job.Wait(ctx)
		return err
	})
	s.do("status of "+job.ID, nil, func(ctx context.Context) (err error) {
		is, err = job.Status(ctx)
		return err
	})
	return is
}

// begun starts a job over the accounts, and waits for its end.
func (s *telling) begun(m *mapper.Mapper[credit], o mapper.StartOptions) *mapper.Job {
	s.Helper()
	job := s.begin(m, o)
	s.await(job)
	return job
}

// verify checks that a job's records prove that the job is complete.
func (s *telling) verify(job *mapper.Job) {
	s.Helper()
	s.do("verify "+job.ID, nil, func(ctx context.Context) error {
		proof, err := job.Verify(ctx, nil)
		if err == nil && proof.Err() != nil {
			s.Errorf("%s: %v", job.ID, proof.Err())
		}
		return err
	})
}

// undo undoes a job, and waits for the end of the undo. It returns the undo.
func (s *telling) undo(job *mapper.Job) (undo *mapper.Job) {
	s.Helper()
	s.do("undo "+job.ID, nil, func(ctx context.Context) (err error) {
		undo, err = job.Undo(ctx, nil)
		return err
	})
	if status := s.await(undo); status.State != mapper.StateSucceeded {
		s.Errorf("the undo of %s: %+v", job.ID, status)
	}
	return undo
}

// none checks that the database has no records of the given kinds.
func (s *telling) none(kinds ...string) {
	s.Helper()
	s.calmly(func() {
		for _, kind := range kinds {
			if keys := allKeys(s.world, kind); len(keys) > 0 {
				s.Errorf("%d records are left of kind %s, such as %v", len(keys), kind, keys[0])
			}
		}
	})
}

func allKeys(w *world, kind string) []*datastore.Key {
	w.Helper()
	keys, err := w.client.GetAll(w.Context(), datastore.NewQuery(kind).KeysOnly(), nil)
	if err != nil {
		w.Fatal(err)
	}
	return keys
}

// restored checks that the entities are the same as in before, except for those that the undo lists
// as not restored. It may list up to most entities.
func (s *telling) restored(before map[string]string, undo *mapper.Job, most int) {
	s.Helper()
	s.calmly(func() {
		left := leftBy(s, undo)
		if len(left) > most {
			s.Errorf("the undo has left %v", left)
		}
		want, got := maps.Clone(before), images(s, s.client, "Account", "Note", "Event")
		for key := range left {
			delete(want, key)
			delete(got, key)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.Errorf("(-want +got)\n%.2000s", diff)
		}
	})
}

func mappersOf(m ...mapper.AnyMapper) []mapper.AnyMapper { return m }

var stories = []story{
	{"a job until its record is gone", mappersOf(addCredit), func(s *telling) {
		keys := names(20)
		s.putAccounts(keys)
		job := s.begin(addCredit, mapper.StartOptions{ID: "j"})
		if status := s.await(job); status.State != mapper.StateSucceeded || status.Processed != 20 ||
			status.Counters["credited"] != 20 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() { s.wantBalances(keys, 10) })
		s.verify(job)
		for _, o := range []mapper.CleanUpOptions{
			{ExpireAfter: time.Hour}, {IncludeFailures: true}, {IncludeJob: true},
		} {
			gone := func() bool {
				_, err := job.Status(s.Context())
				return o.IncludeJob && errors.Is(err, mapper.ErrNoSuchJob)
			}
			s.do("clean up", gone, func(ctx context.Context) error { return job.CleanUp(ctx, &o) })
			time.Sleep(3 * time.Hour) // until the tasks of the clean-up have ended
		}
		s.none(record.RangeKind, record.JobKind)
		s.calmly(func() { s.wantBalances(keys, 10) })
	}},
	{"failures that are retried", mappersOf(mended), func(s *telling) {
		keys := names(20)
		s.putAccounts(keys)
		job := s.begin(mended, mapper.StartOptions{ID: "j"})
		if status := s.await(job); status.State != mapper.StateSucceededWithFailures || status.Failures != 4 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() { // the check uses the mapper's function, whose calls must not fail
			_, err := s.client.Put(s.Context(), datastore.NameKey("Repair", "done", nil), new(account))
			s.must(err)
		})
		running := func() bool { return !s.state("j", mapper.StateSucceededWithFailures)() }
		s.do("retry", running, func(ctx context.Context) error { return job.Retry(ctx, nil) })
		if status := s.await(job); status.State != mapper.StateSucceeded || status.Processed != 20 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() { s.wantBalances(keys, 10) })
		s.verify(job)
	}},
	{"an undo, and its undo", mappersOf(meddler), func(s *telling) {
		putMeddled(s, s.client, 20)
		before := images(s, s.client, "Account", "Note", "Event")
		job := s.begun(meddler, mapper.StartOptions{ID: "j", FailureLimit: -1})
		after := images(s, s.client, "Account", "Note", "Event")
		undo := s.undo(job)
		s.restored(before, undo, 0)
		s.restored(after, s.undo(undo), 0)
	}},
	{"an undo after days", mappersOf(meddler), func(s *telling) {
		putMeddled(s, s.client, 20)
		before := images(s, s.client, "Account", "Note", "Event")
		time.Sleep(time.Hour)
		job := s.begun(meddler, mapper.StartOptions{ID: "j", FailureLimit: -1})
		time.Sleep(3 * 24 * time.Hour)
		s.restored(before, s.undo(job), 8) // days later, the database no longer knows all states just before the job
	}},
	{"records that are kept for a time", mappersOf(addCredit), func(s *telling) {
		keys := names(20)
		s.putAccounts(keys)
		job := s.begin(addCredit, mapper.StartOptions{ID: "j", Retain: mapper.MinRetain})
		s.await(job)
		time.Sleep(mapper.MinRetain + 24*time.Hour)
		s.do("revive", nil, s.engine.ReviveJobs)
		time.Sleep(3 * time.Hour)
		s.none(record.RangeKind)
		if status := s.await(job); status.State != mapper.StateSucceeded || status.Processed != 20 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() { s.wantBalances(keys, 10) })
	}},
	{"a job that people control", mappersOf(slowCredit), func(s *telling) {
		keys := names(40)
		s.putAccounts(keys)
		job := s.begin(slowCredit, mapper.StartOptions{ID: "j"})
		s.do("pause", s.state("j", mapper.StatePaused), job.Pause)
		time.Sleep(time.Hour)
		s.do("resume", s.state("j", mapper.StateRunning), job.Resume)
		ended := s.state("j", mapper.StateSucceeded) // the job may have ended while the operators waited
		s.do("rate", ended, func(ctx context.Context) error {
			return job.SetRateFor(ctx, mapper.Rate{EntitiesPerSecond: 10}, time.Minute)
		})
		s.do("budget", ended, func(ctx context.Context) error {
			return job.SetBudget(ctx, mapper.Budget{Dollars: 1000})
		})
		s.do("retain", nil, func(ctx context.Context) error { return job.SetRetain(ctx, mapper.MinRetain) })
		if status := s.await(job); status.State != mapper.StateSucceeded || status.Processed != 40 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() { s.wantBalances(keys, 10) })
		s.verify(job)
	}},
	{"a job that is aborted", mappersOf(slowCredit), func(s *telling) {
		s.putAccounts(names(200))
		job := s.begin(slowCredit, mapper.StartOptions{ID: "j"})
		time.Sleep(100 * time.Millisecond)
		s.do("abort", s.state("j", mapper.StateAborted), job.Abort)
		time.Sleep(time.Minute) // until pages that still run have ended
		status := s.await(job)
		var credited int64
		s.calmly(func() { credited = s.credited(200) })
		s.do("clean up", nil, func(ctx context.Context) error {
			return job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: true})
		})
		time.Sleep(3 * time.Hour)
		s.none(record.RangeKind)
		if again := s.await(job); again.Processed != credited || again.State != mapper.StateAborted {
			s.Errorf("status %+v, before %+v, credited %d", again, status, credited)
		}
	}},
	{"two ticks of a schedule", mappersOf(slowCredit), func(s *telling) {
		keys := names(20)
		s.putAccounts(keys)
		schedule := mapper.NewSchedule("nightly", slowCredit, mapper.OverlapQueue)
		bridge.Tick(s.engine, "nightly")
		for i := range 2 {
			s.do("tick", nil, func(ctx context.Context) error {
				_, err := schedule.Tick(ctx, s.engine, midnight.Add(time.Duration(i)*time.Minute),
					mapper.Query{Kind: "Account"}, credit{10}, &mapper.StartOptions{PageSize: 5})
				return err
			})
		}
		for i := range 2 {
			time.Sleep(time.Hour)
			s.do("advance", nil, func(ctx context.Context) error { return schedule.Advance(ctx, s.engine) })
			if status := s.await(s.engine.Job(schedule.JobID(midnight.Add(time.Duration(i) * time.Minute)))); status.
				Processed != 20 {
				s.Errorf("status %+v", status)
			}
		}
		s.calmly(func() { s.wantBalances(keys, 20) })
	}},
	{"a job that moves to another queue", mappersOf(slowCredit), func(s *telling) {
		other := s.second(slowCredit)
		keys := names(40)
		s.putAccounts(keys)
		job := s.begin(slowCredit, mapper.StartOptions{ID: "j"})
		s.do("move", nil, other.engine.Job(job.ID).Move)
		if status := s.await(other.engine.Job(job.ID)); status.Processed != 40 || status.Queue != otherQueue {
			s.Errorf("status %+v", status)
		}
		s.do("move back", nil, job.Move)
		s.do("clean up", nil, func(ctx context.Context) error {
			return job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: true})
		})
		time.Sleep(3 * time.Hour)
		s.none(record.RangeKind)
		s.calmly(func() { s.wantBalances(keys, 10) })
	}},
	{"pages that are written elsewhere", mappersOf(pager), func(s *telling) {
		s.putAccounts(names(20))
		if status := s.await(s.begin(pager, mapper.StartOptions{ID: "j"})); status.Processed != 20 ||
			status.Counters["pages"] < 4 {
			s.Errorf("status %+v", status)
		}
		s.calmly(func() {
			var sheets []sheet
			_, err := s.client.GetAll(s.Context(), datastore.NewQuery("Sheet"), &sheets)
			s.must(err)
			n := int64(0)
			for _, page := range sheets {
				n += page.N
			}
			if n != 20 {
				s.Errorf("%d accounts are in %d pages", n, len(sheets))
			}
		})
		if keys := allKeys(s.world, "Finished"); len(keys) != 1 {
			s.Errorf("the finalizer has put %v", keys)
		}
	}},
	{"an erasure", mappersOf(eraser, mended, meddler), func(s *telling) {
		for i := range 20 {
			_, err := s.client.Put(s.Context(), datastore.NameKey("Account", fmt.Sprintf("alice-%02d", i), nil),
				&account{Owner: "alice"})
			s.must(err)
		}
		s.await(s.begin(mended, mapper.StartOptions{ID: "with-failures"}))
		s.await(s.begin(mended, mapper.StartOptions{ID: "for-alice"}))
		s.undo(s.begun(meddler, mapper.StartOptions{ID: "undone", FailureLimit: -1}))
		schedule := mapper.NewSchedule("nightly", mended, mapper.OverlapSkip)
		s.do("tick", nil, func(ctx context.Context) error {
			_, err := schedule.Tick(ctx, s.engine, midnight, mapper.Query{Kind: "Account",
				Start: datastore.NameKey("Account", "alice", nil)}, credit{10}, nil)
			return err
		})
		time.Sleep(time.Hour)
		if status := s.await(s.begin(eraser, mapper.StartOptions{ID: "erasure"})); status.State !=
			mapper.StateSucceeded {
			s.Errorf("status %+v", status)
		}
		s.none("Account")
		alice := mapper.Subject{Words: []string{"alice"}}
		s.calmly(func() {
			for _, kind := range []string{record.JobKind, record.RangeKind, record.ScheduleKind, record.SlotKind,
				record.DraftKind, record.BatchKind} {
				var all []datastore.PropertyList
				keys, err := s.client.GetAll(s.Context(), datastore.NewQuery(kind), &all)
				s.must(err)
				for i, list := range all {
					if text := fmt.Sprintf("%v %+v", keys[i], list); alice.Mentions(text) {
						s.Errorf("it is left in %.500s", text)
					}
				}
			}
		})
	}},
}

// eraser deletes accounts, and removes the word "alice" from the records of other jobs.
var eraser = mapper.Update("eraser", func(_ context.Context, a *mapper.Entity[account], _ credit) error {
	a.Delete(a.Key)
	return nil
}).Forget(func(ctx context.Context, d *mapper.Completion, _ credit) error {
	_, err := d.Forget(ctx, mapper.Subject{Words: []string{"alice"}})
	return err
})

// pager puts an entity for each page, and one in its finalizer.
var pager = mapper.VisitPages("pager",
	func(_ context.Context, a *mapper.Entity[account], _ credit) (string, error) { return a.Key.Name, nil },
	func(_ context.Context, p *mapper.Page[string], _ credit) error {
		p.Put(datastore.NameKey("Sheet", p.UniqueName(), nil), &sheet{p.UniqueName(), int64(len(p.Records))})
		p.Count("pages", 1)
		return nil
	}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ credit) error {
	d.Put(datastore.IncompleteKey("Finished", nil), &sheet{Name: d.RunID()})
	return nil
})

// mended fails on every fifth account, until an entity says that the cause is removed.
var mended = mapper.Update("mended", func(ctx context.Context, a *mapper.Entity[account], p credit) error {
	err := a.Get(ctx, datastore.NameKey("Repair", "done", nil), new(account))
	switch {
	case err != nil && !errors.Is(err, datastore.ErrNoSuchEntity):
		return err
	case err != nil && strings.ContainsAny(a.Key.Name[len(a.Key.Name)-1:], "05"):
		return mapper.Permanent(errors.New("broken"))
	}
	a.Value.Balance += p.Amount
	return nil
})
