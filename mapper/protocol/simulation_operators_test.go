package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// This file simulates the operators who control the job of a simulation, and other clients that
// write at the same time. They use the engines of processes that may stop in the middle of a call.

// handle returns the job that now has the simulation's ID, for calls of the test itself.
func (s *simulation) handle() *mapper.Job { return s.engine.Job(simID) }

// ofProcess returns the same job as handle, for calls in one of the processes.
func (s *simulation) ofProcess() *mapper.Job { return s.fleet.pick().engine.Job(simID) }

// insist makes a call on the job as an operator would. It repeats the call until it succeeds, is
// pointless in the job's state, or the job is deleted. In an unattended simulation, it also stops
// when taken reports that the call has had its effect. The rest must then happen without operators.
func (s *simulation) insist(what string, taken func() bool, do func(context.Context) error) {
	var err error
	for range 10_000 {
		err = s.patiently(func() error { return do(s.mishap()) })
		s.wake()
		if err == nil || errors.Is(err, mapper.ErrWrongState) || errors.Is(err, mapper.ErrNoSuchJob) || s.unattended &&
			taken != nil && taken() {
			return
		}
		time.Sleep(time.Second)
	}
	s.Errorf("%s: it never succeeds: %v", what, err)
}

// has returns a function that reports whether the status of a job satisfies f. If the job is
// deleted, f gets nil.
func (s *simulation) has(id string, f func(*mapper.Status) bool) func() bool {
	return func() bool {
		s.faults.Pause()
		defer s.faults.Resume()
		status, err := s.engine.Job(id).Status(s.Context())
		if err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
			s.Fatal(err)
		}
		return f(status)
	}
}

// not returns a function that reports whether the simulation's job is in another state than the
// given one.
func (s *simulation) not(state mapper.State) func() bool {
	return s.has(simID, func(status *mapper.Status) bool { return status == nil || status.State != state })
}

// mishap returns the context for an operator's calls. The process may die or stop at one of these
// calls.
func (s *simulation) mishap() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mishaps == 0 || s.dice.IntN(2) == 0 {
		return s.Context()
	}
	s.mishaps--
	m := &mishap{happen: s.fleet.kill, after: s.dice.IntN(14)}
	if s.dice.IntN(3) == 0 {
		m.happen = s.fleet.freeze
	}
	return m.with(s.Context())
}

// patiently makes a call. If the process that makes it has stopped, patiently lets it continue
// after a while.
func (s *simulation) patiently(do func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- do() }()
	for {
		select {
		case err := <-answered:
			return err
		case <-time.After(10 * time.Minute):
			s.fleet.thaw()
		}
	}
}

func (s *simulation) start(o *mapper.StartOptions) (job *mapper.Job) {
	started := s.has(simID, func(status *mapper.Status) bool { return status != nil })
	s.insist("start", started, func(ctx context.Context) (err error) {
		job, err = s.mapper.Start(ctx, s.fleet.pick().engine, s.query, credit{10}, o)
		return err
	})
	return job
}

// abortLate aborts a job some time after its end. The call must be refused. By then, another job
// may have the same ID, and the call must not affect it.
func (s *simulation) abortLate(job *mapper.Job) {
	if job == nil {
		return
	}
	after := time.Duration(s.rng.IntN(3600)) * time.Second
	s.late.Go(func() {
		time.Sleep(after)
		if err := s.patiently(func() error { return job.Abort(s.Context()) }); err == nil {
			s.Errorf("a job that has succeeded was aborted %v later", after)
		}
	})
}

// tamper changes the record of a range that is done, if there is one. From then on the job can't
// succeed until mend takes the change back.
func (s *simulation) tamper(rng *rand.Rand) {
	time.Sleep(time.Duration(rng.IntN(20_000)) * time.Millisecond)
	s.faults.Pause()
	defer s.faults.Resume()
	it := s.client.Run(s.Context(), datastore.NewQuery(record.RangeKind).FilterField("__key__", ">",
		datastore.NameKey(record.RangeKind, fmt.Sprintf("%x", rng.IntN(16)), nil)))
	for {
		var list datastore.PropertyList
		key, err := it.Next(&list)
		if errors.Is(err, iterator.Done) {
			return
		}
		if err != nil {
			s.Fatal(err)
		}
		if propertyOf(list, "job") == simID && propertyOf(list, "state") == "done" && propertyOf(list, "alone") == nil {
			s.putRecord(key,
				append(without(list, "processed"), datastore.Property{Name: "processed", Value: int64(12345),
					NoIndex: true}))
			if len(s.open()) > 0 {
				s.tampered = &tampered{key, list}
			} else { // the job may have read the record already
				s.putRecord(key, list)
			}
			return
		}
	}
}

// A tampered is the original version of a record that tamper has changed.
type tampered struct {
	key  *datastore.Key
	list datastore.PropertyList
}

// mend takes back the change of tamper, if there is one. The job must have failed because of it.
func (s *simulation) mend(status *mapper.Status) (mended bool) {
	if s.tampered == nil {
		return false
	}
	s.faults.Pause()
	defer s.faults.Resume()
	if status.State != mapper.StateFailed || !strings.Contains(status.Error, "its records do not add up") {
		s.Errorf("a record was changed, and the job: %+v", status)
	}
	s.putRecord(s.tampered.key, s.tampered.list)
	s.tampered = nil
	return true
}

func (s *simulation) putRecord(key *datastore.Key, list datastore.PropertyList) {
	if _, err := s.client.Put(s.Context(), key, &list); err != nil {
		s.Fatal(err)
	}
}

func propertyOf(list datastore.PropertyList, name string) any {
	for _, p := range list {
		if p.Name == name {
			return p.Value
		}
	}
	return nil
}

// operate simulates an operator who pauses jobs, purges the queue, kills processes, and resumes
// jobs.
func (s *simulation) operate(rng *rand.Rand) {
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.IntN(20_000)) * time.Millisecond)
		repair, taken := func(ctx context.Context) error { return s.ofProcess().Resume(ctx) }, (func() bool)(nil)
		switch rng.IntN(4) {
		case 0:
			// The job may be paused even if the call returns an error.
			_ = s.patiently(func() error { return s.ofProcess().Pause(s.Context()) })
			taken = s.not(mapper.StatePaused)
		case 1:
			s.purge() // deletes the sweeps' tasks, too
		case 2:
			s.purge()
			if !s.unattended {
				repair = func(ctx context.Context) error { return s.fleet.pick().engine.ReviveJobs(ctx) }
			}
		default:
			s.fleet.killAny()
			continue
		}
		time.Sleep(time.Duration(rng.IntN(600)) * time.Second)
		s.insist("repair", taken, repair)
	}
}

// shutDown simulates a platform that ends processes at some times. It gives each some time to
// drain.
func (s *simulation) shutDown(rng *rand.Rand) {
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.IntN(20_000)) * time.Millisecond)
		_ = s.fleet.drain(s.fleet.pick(), time.Duration(rng.IntN(10_000))*time.Millisecond) // the time may be too short
	}
}

// purge deletes all tasks in the queue.
func (s *simulation) purge() {
	client, err := s.emulator.TasksClient(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	// An error is ignored, because any call may fail.
	_, _ = client.PurgeQueue(s.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queueName})
}

// interfere simulates another client that adds to accounts while the job runs. It records each
// addition in the account, so that it can repeat a call whose answer was lost.
func (s *simulation) interfere(rng *rand.Rand) {
	for range rng.IntN(30) {
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		i, mark := rng.IntN(len(s.keys)), fmt.Sprint("m", rng.Uint64())
		if s.balances[i] != nil {
			continue // a function of the job puts this account, which would overwrite the client's addition
		}
		s.insist("another client", nil, func(context.Context) error {
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

// heat simulates a client that, in every third job, writes one account all the time, without
// reading it. Pages with this account conflict.
func (s *simulation) heat(rng *rand.Rand) {
	i, pause := rng.IntN(len(s.keys)), time.Duration(math.Pow(20, rng.Float64())*float64(20*time.Millisecond))
	if rng.IntN(3) > 0 || s.balances[i] != nil {
		return
	}
	time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	for n := range 50 + rng.IntN(150) {
		list := datastore.PropertyList{{Name: "Hot", Value: int64(n)}}
		// An error is ignored, because nobody reads the value.
		_, _ = s.client.Mutate(s.Context(), datastore.NewUpdate(s.keys[i], &list).WithPropertyMask("Hot"))
		time.Sleep(pause)
	}
}

// open returns the ranges that are not done.
func (s *simulation) open() (open []rangeRecord) {
	for _, r := range records(s, s.client)[simID] {
		if r.State == "pending" {
			open = append(open, r)
		}
	}
	return open
}

// queued returns descriptions of the tasks in the queue.
func (s *simulation) queued() (queued []string) {
	client, err := s.emulator.TasksClient(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	for task, err := range client.ListTasks(s.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName,
		ResponseView: cloudtaskspb.Task_FULL}).All() {
		if err != nil {
			s.Fatal(err)
		}
		queued = append(queued, fmt.Sprintf("%s %s at %v, %d dispatches", task.GetHttpRequest().GetUrl(),
			task.GetHttpRequest().GetBody(), task.ScheduleTime.AsTime(), task.DispatchCount))
	}
	return queued
}

// await waits for the end of the job. If nearly every call is slow, no attempt of a task may end
// before its deadline. So after a while await ends all faults. From then on the job must end.
func (s *simulation) await() *mapper.Status {
	status := s.awaitOnce()
	if s.mend(status) {
		s.insist("resume", s.not(mapper.StateFailed), func(ctx context.Context) error {
			return s.ofProcess().Resume(ctx)
		})
		status = s.awaitOnce()
	}
	if status.State == mapper.StateFailed && s.end.fails() {
		want := "while it did nothing but the finalizer"
		if s.end == neverEnds {
			want = "the finalizer failed: never"
		}
		if !strings.HasSuffix(status.Error, want) || !s.finalizes {
			s.Errorf("the job failed: %+v; its finalizer %d", status, s.end)
		}
		s.mu.Lock()
		s.end = endsWell
		s.mu.Unlock()
		s.insist("resume", s.not(mapper.StateFailed), func(ctx context.Context) error {
			return s.ofProcess().Resume(ctx)
		})
		status = s.awaitOnce()
	}
	return status
}

// awaitOnce waits for the end of the job. In every third call it ends all faults at some time,
// except the function's failures. From then on the job must end within the time that longest
// returns.
func (s *simulation) awaitOnce() *mapper.Status {
	troubled := 11 * time.Hour
	if s.calms.IntN(3) == 0 {
		troubled = time.Duration(math.Pow(3600, s.calms.Float64()) * float64(time.Second))
	}
	status, err := s.waitFor(simID, troubled)
	if err != nil {
		s.faults.Pause()
		defer s.faults.Resume()
		s.fleet.stops.calm()
		s.fleet.thaw()
		s.fleet.wake()
		begun := time.Now()
		status, err = s.waitFor(simID, s.longest())
		s.Logf("calm for %v of at most %v after %v", time.Since(begun), s.longest(), troubled)
	}
	if err != nil {
		status, _ := s.handle().Status(s.Context())
		s.Fatalf("the job does not end: %v; status %+v; open ranges %v; tasks %v", err, status, s.open(), s.queued())
	}
	return status
}

// longest returns how long the job may take after the last fault, according to docs/design.md.
func (s *simulation) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	deaths := 0
	for _, f := range s.fates {
		if f == dying || f == left || f == deadly {
			deaths += mapper.MaxDeaths
		}
	}
	backOff := time.Duration(0)
	if s.end == endsSlow || s.end == endsTwice || s.end == deadlyEnd {
		deaths += mapper.MaxDeaths
		backOff = 2 * time.Hour // the back-off of the task that runs the finalizer; no other task replaces this one
	}
	return 3*time.Hour + backOff + time.Duration(deaths)*(s.deadline+4*time.Minute)
}

func (s *simulation) waitFor(id string, t time.Duration) (status *mapper.Status, err error) {
	for begun := time.Now(); time.Since(begun) < t; time.Sleep(max(10*time.Second, time.Since(begun)/20)) {
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		status, err = s.engine.Job(id).Wait(ctx)
		if cancel(); err == nil {
			return status, nil
		}
	}
	return nil, err
}

// wake sometimes lets processes that have stopped continue soon, while they can still disturb a
// lot.
func (s *simulation) wake() {
	s.mu.Lock()
	now, after := s.dice.IntN(3) == 0, time.Duration(math.Pow(10_000, s.dice.Float64())*float64(3*time.Millisecond))
	s.mu.Unlock()
	if now {
		s.late.Go(func() {
			time.Sleep(after)
			s.fleet.thaw()
		})
	}
}

// awaitFunction waits for the end of the job. If the function is broken, it repairs the function
// after a while, and resumes the job if it was failed or paused.
func (s *simulation) awaitFunction() *mapper.Status {
	if !s.broken {
		return s.await()
	}
	status := s.awaitOnce()
	s.mu.Lock()
	s.broken = false
	s.mu.Unlock()
	if status.State == mapper.StateFailed || status.State == mapper.StatePaused {
		s.insist("resume", s.not(status.State), func(ctx context.Context) error { return s.ofProcess().Resume(ctx) })
		if s.dice.IntN(2) == 0 {
			time.Sleep(time.Duration(s.dice.IntN(1000)) * time.Millisecond)
			s.fleet.thaw()
		}
		status = s.await()
	}
	s.retry(status, false) // retries the entities that failed meanwhile
	return s.await()
}

// thaw lets the processes that have stopped continue, after a second to five minutes.
func (s *simulation) thaw() {
	after := time.Duration(math.Pow(300, s.rng.Float64()) * float64(time.Second))
	s.late.Go(func() {
		time.Sleep(after)
		s.fleet.thaw()
	})
}

// retry retries the job's failures. The argument mended says whether the function was repaired
// before.
func (s *simulation) retry(before *mapper.Status, mended bool) {
	s.mu.Lock()
	s.mended = mended
	s.mu.Unlock()
	// freeze processes while they handle the tasks of the retry, rather than the tasks of ranges
	s.fleet.stops.freeze(s.dice.IntN(3), 0.003)
	begun := s.has(simID, func(status *mapper.Status) bool { return !status.Ended.Equal(before.Ended) })
	s.insist("retry", begun, func(ctx context.Context) error {
		s.retries++
		return s.ofProcess().Retry(ctx, nil)
	})
}

// cleanUp cleans up the job's records, and checks the result. If last is not set, it also deletes
// the job's own record, so that another job can get the ID.
func (s *simulation) cleanUp(last bool) {
	if !last {
		s.cleanUpWith(&mapper.CleanUpOptions{IncludeJob: true})
		return
	}
	o := &mapper.CleanUpOptions{IncludeFailures: s.rng.IntN(2) == 0, IncludeJob: s.rng.IntN(2) == 0}
	s.cleanUpWith(o)
	time.Sleep(24 * time.Hour)
	s.faults.Pause()
	defer s.faults.Resume()
	if n := len(records(s, s.client)[simID]); n != 0 {
		s.Errorf("%d ranges are left", n)
	}
	if _, err := s.handle().Status(s.Context()); o.IncludeJob != errors.Is(err, mapper.ErrNoSuchJob) {
		s.Errorf("after the clean-up %+v: %v", o, err)
	}
}

// cleanUpWith cleans up the job's records with the given options, and waits until this is done.
func (s *simulation) cleanUpWith(o *mapper.CleanUpOptions) {
	if s.rng.IntN(2) == 0 && o.ExpireAfter == 0 {
		s.cleanUpWith(&mapper.CleanUpOptions{ExpireAfter: 1000 * time.Hour})
	}
	s.fleet.stops.allow(s.rng.IntN(4), 0.1)
	s.fleet.stops.freeze(1+s.rng.IntN(3), 0.1)
	if s.rng.IntN(8) == 0 {
		s.thaw()
	}
	begun := s.has(simID, func(status *mapper.Status) bool { return status == nil || status.CleaningUp })
	s.insist("clean up", begun, func(ctx context.Context) error { return s.ofProcess().CleanUp(ctx, o) })
	for range 100_000 {
		status, err := s.handle().Status(s.Context())
		if errors.Is(err, mapper.ErrNoSuchJob) || err == nil && !status.CleaningUp && !o.IncludeJob {
			return
		}
		time.Sleep(5 * time.Second)
	}
	s.faults.Pause()
	status, err := s.handle().Status(s.Context())
	s.Fatalf("the clean-up %+v does not end: status %+v, %v; tasks %v", o, status, err, s.queued())
}
