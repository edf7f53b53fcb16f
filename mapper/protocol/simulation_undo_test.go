package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// TestUndoSimulation undoes jobs that have ended or were aborted, with all kinds of faults. Other
// clients write the same entities before, during and after the undo. The test records all commits.
// From this history it derives what each entity must be at the end.
func TestUndoSimulation(t *testing.T) {
	testflag.Simulate(t, 2, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulateUndo(t, seed) })
	})
}

// A write is a commit's effect on one entity.
type write struct {
	by      string // the ID of the job that has written; empty: another client
	version int64
}

// A history records the writes to each entity, in order. It observes the emulator itself, without
// the injected faults.
type history struct {
	mu     sync.Mutex
	writes map[string][]write // the writes to each entity, by key
	keys   map[string]*datastore.Key
}

func (h *history) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	committed, ok := resp.(*datastorepb.CommitResponse)
	if !ok || err != nil {
		return resp, err
	}
	by, all := "", keysOfCommit(req.(*datastorepb.CommitRequest))
	for _, key := range all {
		if kind := key.Path[0].Kind; kind == record.RangeKind || kind == record.BatchKind {
			by = strings.Split(key.Path[0].GetName(), ".")[1]
		}
	}
	at := commitTime(committed).AsTime().UnixMicro()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, key := range all {
		if given := committed.MutationResults[i].GetKey(); given != nil { // the database has allocated the ID
			key = given
		}
		k := pbkey.Of(key)
		writes := append(h.writes[k.String()], write{by, at})
		// answers to commits may come in another order
		slices.SortFunc(writes, func(a, b write) int { return cmp.Compare(a.version, b.version) })
		h.writes[k.String()], h.keys[k.String()] = writes, k
	}
	return resp, err
}

// keysOfCommit returns the keys of a commit's mutations.
func keysOfCommit(r *datastorepb.CommitRequest) (keys []*datastorepb.Key) {
	for _, m := range r.Mutations {
		switch o := m.Operation.(type) {
		case *datastorepb.Mutation_Insert:
			keys = append(keys, o.Insert.Key)
		case *datastorepb.Mutation_Update:
			keys = append(keys, o.Update.Key)
		case *datastorepb.Mutation_Upsert:
			keys = append(keys, o.Upsert.Key)
		case *datastorepb.Mutation_Delete:
			keys = append(keys, o.Delete)
		}
	}
	return keys
}

// An undoSimulation is one run of TestUndoSimulation: a job and its undo.
type undoSimulation struct {
	*world
	rng     *rand.Rand
	faults  *faults.Faults
	fleet   *fleet
	history *history
	n       int // number of accounts
}

// scribbler returns a mapper that does the same as meddler, and more. The last digit but one of an
// account's name decides whether it also writes entities that other pages write. These are an
// entity that all share, accounts of other pages, and entities that others delete. It fails on some
// accounts at first.
func scribbler(n int) *mapper.Mapper[credit] {
	var mu sync.Mutex
	failed := make(map[string]bool)
	return mapper.Update("meddler", func(_ context.Context, a *mapper.Entity[account], p credit) error {
		name := a.Key.Name
		i, err := strconv.Atoi(strings.TrimPrefix(name, "a-"))
		if err != nil {
			return mapper.Permanent(err)
		}
		switch i / 10 % 10 {
		case 1:
			a.Put(datastore.NameKey("Hot", "one", nil), &account{Owner: name})
		case 2:
			a.Put(datastore.NameKey("Account", fmt.Sprintf("a-%05d", (i+37)%n), nil), &account{Owner: name, Balance: 5})
		case 3:
			a.Delete(datastore.NameKey("Note", fmt.Sprintf("a-%05d", (i+1)%n), nil))
		case 4:
			a.Put(datastore.NameKey("Hot", fmt.Sprint("some ", i%3), nil), &account{Owner: name})
		case 5:
			a.Put(datastore.NameKey("Note", fmt.Sprintf("a-%05d", i/2), nil), &account{Owner: name})
		case 6:
			mu.Lock()
			first := !failed[name]
			failed[name] = true
			mu.Unlock()
			if first && i%2 == 0 {
				return errors.New("at first")
			}
		}
		switch i % 10 {
		case 0, 1, 2:
			a.Value.Balance += p.Amount
		case 3:
			a.Delete(a.Key)
		case 4: // this note may exist
			a.Put(datastore.NameKey("Note", name, nil), &account{Owner: "meddler"})
		case 5:
			a.Put(datastore.IncompleteKey("Event", a.Key), &account{Owner: name})
			a.Put(datastore.IncompleteKey("Event", nil), &account{Owner: name})
		case 6:
			a.Delete(datastore.NameKey("Note", name, nil))
			a.Value.Balance = -1
		case 7:
			return mapper.Permanent(errors.New("seven"))
		case 8:
			a.Touch()
		}
		return nil
	})
}

func simulateUndo(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 20))
	s := &undoSimulation{
		rng: rng, faults: faults.New(seed, trouble(rng)...), n: 50 + rng.IntN(400),
		history: &history{writes: make(map[string][]write), keys: make(map[string]*datastore.Key)},
	}
	m := scribbler(s.n)
	if rng.IntN(3) == 0 {
		m = meddler
	}
	s.faults.Pause()
	s.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: s.faults, PessimisticConcurrency: rng.IntN(3) == 0,
			Interceptor: s.history.intercept,
			Retention:   60 * 24 * time.Hour},
		queue: few(int32(1 + rng.IntN(20))), deadline: time.Duration(60+rng.IntN(1200)) * time.Second,
	}, m)
	s.fleet = newFleet(s.world, seed, 1+rng.IntN(4), m)
	s.fleet.fails.Store(true) // jobs may fail, because a tenth of the accounts does
	s.fleet.zombies = rng.Float64() / 3
	s.fleet.stops.most = time.Hour
	if rng.IntN(2) == 0 { // in this case, an undo restores a page in several commits
		s.fleet.undoesBy(500 + rng.Int64N(8000))
	}
	putMeddled(t, s.client, s.n)
	for _, name := range []string{"one", "some 1"} {
		if _, err := s.client.Put(t.Context(), datastore.NameKey("Hot", name, nil),
			&account{Owner: "before"}); err != nil {
			t.Fatal(err)
		}
	}

	s.trouble()
	s.again("start", func() error {
		_, err := m.Start(t.Context(), s.fleet.pick().engine, mapper.Query{Kind: "Account"}, credit{7},
			&mapper.StartOptions{ID: "done", PageSize: 5 + rng.IntN(50), FailureLimit: -1})
		return err
	})
	others := s.disturb(rng.IntN(80))
	switch rng.IntN(6) {
	case 0, 1:
		time.Sleep(time.Duration(math.Pow(2000, rng.Float64()) * float64(10*time.Millisecond)))
		s.again("abort", func() error { return s.fleet.pick().engine.Job("done").Abort(t.Context()) })
	case 2:
		s.pausedUndo()
	}
	s.await("done")
	if rng.IntN(2) == 0 {
		s.wrongClocks("done")
	}
	if rng.IntN(2) == 0 {
		others.Wait()
	}
	s.disturb(rng.IntN(40)).Wait()
	s.trouble()
	others = s.disturb(rng.IntN(40))
	var cleaning sync.WaitGroup
	if rng.IntN(4) == 0 {
		s.cleanUp(&cleaning)
	}
	undo := s.undo("done", others)
	s.fleet.stops.calm()
	s.fleet.thaw() // the process of an operator may have stopped, too
	cleaning.Wait()
	if undo != nil && rng.IntN(2) == 0 {
		s.trouble()
		s.undo(undo.ID, s.disturb(rng.IntN(20)))
	}
	t.Logf("%d accounts; %d processes died; went wrong: %v", s.n, s.fleet.deaths(), s.faults.Counts())
}

// wrongClocks changes the start and the end in a job's record by up to ten minutes, as if clocks of
// processes had been wrong.
func (s *undoSimulation) wrongClocks(id string) {
	off := func(t time.Time) time.Time { return t.Add(time.Duration(s.rng.IntN(1201)-600) * time.Second) }
	s.again("change the record", func() error {
		_, err := s.client.RunInTransaction(s.Context(), func(tx *datastore.Transaction) error {
			var all datastore.PropertyList
			if err := tx.Get(record.JobKey(id), &all); err != nil {
				return err
			}
			for i, p := range all {
				if at, ok := p.Value.(time.Time); ok && (p.Name == "created" || p.Name == "ended") {
					all[i].Value = off(at)
				}
			}
			_, err := tx.Put(record.JobKey(id), &all)
			return err
		})
		return err
	})
}

// pausedUndo pauses the job, and tries to undo it. The undo must be refused.
func (s *undoSimulation) pausedUndo() {
	time.Sleep(time.Duration(s.rng.IntN(200)) * time.Millisecond)
	s.again("pause", func() error { return s.fleet.pick().engine.Job("done").Pause(s.Context()) })
	status := tryAgain(s, "status", func() (*mapper.Status, error) { return s.engine.Job("done").Status(s.Context()) })
	if status.State != mapper.StatePaused {
		return // the job had already ended
	}
	s.again("undo while it is paused", func() error {
		_, err := s.fleet.pick().engine.Job("done").Undo(s.Context(), nil)
		if err == nil {
			s.Error("a job that is paused is undone")
		}
		if errors.Is(err, mapper.ErrWrongState) {
			return nil
		}
		return err
	})
	s.again("resume", func() error { return s.fleet.pick().engine.Job("done").Resume(s.Context()) })
}

// cleanUp simulates operators who clean up the job at random times. Their processes may stop at any
// call.
func (s *undoSimulation) cleanUp(people *sync.WaitGroup) {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 1))
	for range 1 + rng.IntN(3) {
		options := []*mapper.CleanUpOptions{nil, {IncludeFailures: true}, {ExpireAfter: 24 * time.Hour},
			{IncludeJob: true}, {IncludeJob: true}}[rng.IntN(5)]
		after := time.Duration(math.Pow(1000, rng.Float64()) * float64(5*time.Millisecond))
		people.Go(func() {
			time.Sleep(after)
			err := s.fleet.pick().engine.Job("done").CleanUp(s.Context(), options)
			s.Logf("clean-up after %v: %v", after, err)
		})
	}
}

// undo undoes a job, and checks the result. It returns the undo, or nil if the job was cleaned up
// before.
func (s *undoSimulation) undo(id string, others *sync.WaitGroup) *mapper.Job {
	t, rng := s.T, s.rng
	begin := func() *mapper.Job {
		size := 1 + rng.IntN(5)
		return tryAgain(s, "undo", func() (*mapper.Job, error) {
			j, err := s.fleet.pick().engine.Job(id).Undo(t.Context(), &mapper.UndoOptions{PageSize: size})
			switch {
			case errors.Is(err, mapper.ErrWrongState) && strings.Contains(err.Error(), "cleaned up"),
				errors.Is(err, mapper.ErrNoSuchJob):
				return nil, nil
			case err != nil:
				return nil, err
			}
			return s.engine.Job(j.ID), nil
		})
	}
	undo := begin()
	aborted := undo != nil && rng.IntN(5) == 0
	if aborted {
		time.Sleep(time.Duration(math.Pow(2000, rng.Float64()) * float64(10*time.Millisecond)))
		first := undo.ID
		s.again("abort", func() error { return s.fleet.pick().engine.Job(first).Abort(t.Context()) })
		undo = begin()
		aborted = undo != nil && undo.ID != first // otherwise the first undo had already ended
	} else if undo != nil && rng.IntN(3) == 0 {
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
		undo = begin() // a repeated call of Undo must return the same undo
	}
	if undo == nil { // the job was cleaned up before the undo, or after an undo that was aborted or has ended
		s.afterCleanUp(id)
		return nil
	}
	status := s.await(undo.ID)
	s.faults.Pause()
	for tries := 0; status.State != mapper.StateSucceeded && tries < 5; tries++ {
		failures, _, err := undo.FailuresPage(t.Context(), "")
		t.Logf("the undo has ended as %q %s: %v %v", status.State, status.Error, failures, err)
		refused := false
		s.again("retry", func() (err error) {
			if status.State == mapper.StateFailed {
				err = undo.Resume(t.Context())
			} else {
				err = undo.Retry(t.Context(), nil)
			}
			if refused = errors.Is(err, mapper.ErrWrongState); refused {
				return nil
			}
			return err
		})
		// the undo had ended, and then the job was cleaned up: entities that were not restored are
		// failures
		if refused {
			return nil
		}
		status = s.await(undo.ID)
	}
	if status.State != mapper.StateSucceeded {
		t.Errorf("status %+v", status)
	}
	others.Wait()
	s.fleet.thaw()
	time.Sleep(24 * time.Hour) // until late calls have come, and all processes have continued
	counts := status.Counters
	if aborted {
		counts = nil
	}
	s.check(id, s.left(undo), counts)
	if proof, err := undo.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	t.Logf("undo of %s: %v", id, status.Counters)
	return undo
}

// left returns the entities that an undo lists as not restored.
func (s *undoSimulation) left(undo *mapper.Job) (left []mapper.NotUndone) {
	for cursor := ""; ; {
		some, next, err := undo.NotUndonePage(s.Context(), cursor)
		if err != nil {
			s.Fatal(err)
		}
		left = append(left, some...)
		if cursor = next; next == "" {
			return left
		}
	}
}

// afterCleanUp waits until a job is cleaned up.
func (s *undoSimulation) afterCleanUp(id string) {
	s.Logf("%s is cleaned up, and is not undone", id)
	s.faults.Pause()
	s.fleet.stops.calm()
	s.fleet.thaw()
	time.Sleep(24 * time.Hour)
}

// trouble starts the injection of all kinds of faults.
func (s *undoSimulation) trouble() {
	s.faults.Resume()
	s.fleet.stops.allow(s.rng.IntN(8), math.Pow(1000, -s.rng.Float64()))
	s.fleet.stops.freeze(s.rng.IntN(3), math.Pow(1000, -s.rng.Float64()))
	s.fleet.stops.kill(s.rng.IntN(4), 0.1*math.Pow(1000, -s.rng.Float64()))
}

// again repeats a call until it succeeds, as an operator would.
func (s *undoSimulation) again(what string, do func() error) {
	tryAgain(s, what, func() (none struct{}, _ error) { return none, do() })
}

// tryAgain repeats a call until an attempt succeeds, and returns the result. An attempt in a
// stopped process may succeed much later.
func tryAgain[T any](s *undoSimulation, what string, do func() (T, error)) (is T) {
	type answer struct {
		is  T
		err error
	}
	for range 1000 {
		done := make(chan answer, 1)
		go func() {
			is, err := do()
			done <- answer{is, err}
		}()
		select {
		case a := <-done:
			if a.err == nil || errors.Is(a.err, mapper.ErrWrongState) &&
				slices.Contains([]string{"abort", "pause", "resume"}, what) {
				return a.is
			}
		case <-time.After(10 * time.Minute): // the process has stopped
		}
		s.fleet.thaw()
		time.Sleep(time.Second)
	}
	s.Fatalf("%s: it never succeeds", what)
	return is
}

// await waits until a job has ended, and returns its status. It resumes the job if a stopped
// process has paused it late.
func (s *undoSimulation) await(id string) *mapper.Status {
	for range 2000 {
		status, err := s.engine.Job(id).Status(s.Context())
		switch {
		case err == nil && status.State.Ended():
			return status
		case err == nil && status.State == mapper.StatePaused:
			_ = s.engine.Job(id).Resume(s.Context())
		}
		for range 5 { // such a status reads many records, so a read may fail
			time.Sleep(time.Minute)
			s.fleet.thaw()
			_ = s.engine.ReviveJobs(s.Context())
		}
	}
	s.Fatalf("job %s does not end", id)
	return nil
}

// disturb lets another client write the given number of times.
func (s *undoSimulation) disturb(times int) *sync.WaitGroup {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
	var people sync.WaitGroup
	people.Go(func() {
		for range times {
			name := fmt.Sprintf("a-%05d", rng.IntN(s.n+5))
			key := datastore.NameKey([]string{"Account", "Note"}[rng.IntN(2)], name, nil)
			hot := rng.IntN(20) == 0
			if hot {
				key = datastore.NameKey("Hot", []string{"one", "some 0", "some 1", "some 2"}[rng.IntN(4)], nil)
			}
			if rng.IntN(4) == 0 && !hot {
				_ = s.client.Delete(s.Context(), key)
			} else {
				_, _ = s.client.Put(s.Context(), key, &datastore.PropertyList{{Name: "Mine", Value: rng.Int64()},
					{Name: "Balance", Value: int64(1)}})
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
	})
	return &people
}

// image returns an entity as of a version. It returns nil if the entity did not exist then.
func (s *undoSimulation) image(key *datastore.Key, version int64) *datastorepb.Entity {
	ctx, results := wire.Reading(s.Context())
	tx, err := s.client.NewTransaction(ctx, datastore.ReadOnly, datastore.WithReadTime(time.UnixMicro(version)))
	if err != nil {
		s.Fatal(err)
	}
	if err := tx.Get(key, new(datastore.PropertyList)); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		s.Fatal(err)
	}
	return results.Of(key).GetEntity()
}

// check compares every entity with the history of commits, after the job was undone. The argument
// left has the entities that the last undo did not restore; counts are its counters.
func (s *undoSimulation) check(job string, left []mapper.NotUndone, counts map[string]int64) {
	listed := make(map[string]string)
	for _, l := range left {
		if l.Key == nil {
			s.Errorf("an entity without a key is left: %s", l.Reason)
			continue
		}
		listed[l.Key.String()] = l.Reason
	}
	if counts != nil && counts["left"] != int64(len(left)) {
		s.Errorf("%d entities are left by the list, and %d by the count", len(left), counts["left"])
	}
	ended := s.endOf(job)
	var restored, removed int64
	for name, writes := range s.history.writes {
		key := s.history.keys[name]
		if strings.HasPrefix(key.Kind, "Scattermap") {
			continue
		}
		e := &scribbled{undoSimulation: s, key: key, ended: ended, twice: counts == nil, why: listed[name]}
		for _, w := range writes {
			was, is := s.image(key, w.version-1), s.image(key, w.version)
			if was != nil || is != nil { // otherwise the write has not changed anything
				e.all = append(e.all, wrote{by: roleOf(w.by, job), at: time.UnixMicro(w.version), was: was, is: is})
			}
		}
		delete(listed, name)
		e.check()
		for _, w := range e.all {
			switch {
			case w.by == itsUndo && w.is == nil:
				removed++
			case w.by == itsUndo:
				restored++
			}
		}
	}
	if len(listed) > 0 {
		s.Errorf("entities are listed as left that no client has written: %v", listed)
	}
	if counts != nil && (restored != counts["restored"] || removed != counts["removed"]) {
		s.Errorf("%d entities were restored and %d removed, and the undo says %v", restored, removed, counts)
	}
	s.Logf("%d entities restored, %d removed, %d left", restored, removed, len(left))
}

// endOf returns when a job ended, by the database's clock. The history has this time also if the
// job's record was changed or deleted later.
func (s *undoSimulation) endOf(id string) (ended time.Time) {
	over := func(version int64) bool {
		return s.image(record.JobKey(id), version).GetProperties()["ended"].GetTimestampValue().AsTime().Unix() > 0
	}
	for _, w := range s.history.writes[record.JobKey(id).String()] {
		if over(w.version) && !over(w.version-1) {
			ended = time.UnixMicro(w.version - 1)
		}
	}
	return ended
}

// A role is the relation of the writer of an entity to a job.
type role string

const (
	someone role = "another client"
	itself  role = "the job"
	itsUndo role = "its undo"
)

// roleOf returns the role that the writer with the ID by has for a job. The undo of a job has a
// name that starts with the job's. An undo of that undo counts as another client.
func roleOf(by, job string) role {
	switch rest, undoes := strings.CutPrefix(by, "undo-"+job); {
	case by == job:
		return itself
	case undoes && (rest == "" || rest[0] == '-'):
		return itsUndo
	}
	return someone
}

// A wrote is one write to an entity: the role of its writer, and the entity before and after.
type wrote struct {
	by      role
	at      time.Time
	was, is *datastorepb.Entity // the entity before and after; nil: it did not exist
}

// A scribbled is an entity, with all writes to it and what the undo says about it.
type scribbled struct {
	*undoSimulation
	key   *datastore.Key
	ended time.Time // when the job ended
	twice bool      // whether an earlier undo was aborted, so that the next one finds what others wrote in between
	why   string    // why the undo lists it as not restored; empty: it is not listed
	all   []wrote
}

func (e *scribbled) wrong(format string, args ...any) {
	e.Helper()
	var text []string
	for _, w := range e.all {
		text = append(text, fmt.Sprintf("%s: %.80s -> %.80s", w.by, fmt.Sprint(w.was), fmt.Sprint(w.is)))
	}
	e.Errorf("%s, listed as %q: %s\n%s", e.key, e.why, fmt.Sprintf(format, args...), strings.Join(text, "\n"))
}

func alike(a, b *datastorepb.Entity) bool {
	return a == nil && b == nil || a != nil && b != nil && proto.Equal(a, b)
}

// check checks what the undo has made of the entity. Writes by the job that directly follow each
// other form a run; between runs, others have written. The undo must take back the last run, unless
// others have written after it. It must list the entity for the other runs.
func (e *scribbled) check() {
	first := slices.IndexFunc(e.all, func(w wrote) bool { return w.by == itself })
	undone := 0
	for i, w := range e.all {
		if w.by == itsUndo {
			undone++
			if i == 0 || first < 0 || first > i {
				e.wrong("it is undone before the job has written it")
				return
			}
		}
	}
	if first < 0 {
		if e.why != "" {
			e.wrong("the job has not written it")
		}
		return
	}
	gone := 0 // number of deletions; after a deletion, nobody can tell who wrote the entity before
	for i, w := range e.all[first:] {
		if w.is == nil && w.by != itsUndo &&
			(w.by != itself || slices.ContainsFunc(e.all[first+i+1:], func(w wrote) bool {
				return w.by != itsUndo
			})) {
			gone++
		}
	}
	if gone > 0 {
		e.checkGone(first)
		return
	}
	if undone > 1 {
		e.wrong("it is undone %d times", undone)
		return
	}
	mayList, mustList := false, false
	for i := first; i < len(e.all); i++ {
		if e.all[i].by != itself || i > 0 && e.all[i-1].by == itself {
			continue
		}
		end := i
		for end < len(e.all) && e.all[end].by == itself {
			end++
		}
		was, after := e.all[i].was, e.all[end:]
		// Others may have written the entity at the time when the undo read it.
		again := slices.ContainsFunc(after, func(w wrote) bool { return alike(w.is, was) })
		switch {
		case len(after) > 0 && after[0].by == itsUndo:
			if !alike(after[0].is, was) {
				e.wrong("it was %v, and became %v", was, after[0].is)
			}
			mayList = mayList || e.twice && len(after) > 1
		case len(after) == 0 && !alike(e.all[end-1].is, was):
			e.wrong("it is not undone")
		case len(after) > 0: // others have written after the job; but a put after a deletion does not show that
			idle := !slices.ContainsFunc(e.all[i:end], func(w wrote) bool { return !alike(w.is, w.was) })
			mayList, mustList = true, mustList || !again && !idle
		}
	}
	if e.why != "" && !mayList || e.why == "" && mustList {
		e.wrong("it may be listed: %v; it has to be: %v", mayList, mustList)
	}
}

// checkGone checks an entity that was deleted between writes. The undo must make it what it was
// before some write of the job, or list it. In one case it must stay deleted and be listed: others
// put it after the job had deleted it, and deleted it after the job had ended.
func (e *scribbled) checkGone(first int) {
	before := func(is *datastorepb.Entity) bool {
		return slices.ContainsFunc(e.all, func(w wrote) bool { return w.by == itself && alike(w.was, is) })
	}
	for _, w := range e.all {
		if w.by == itsUndo && !before(w.is) {
			e.wrong("it became what it was never before a write of the job")
		}
	}
	last := e.all[len(e.all)-1]
	if e.why == "" && last.by == itself && !before(last.is) {
		e.wrong("it is neither restored nor listed")
	}
	if stood, was := e.stood(); stood && (last.is != nil || e.why == "" && was != nil) {
		e.wrong("others have put it when the job had deleted it, and deleted it when the job had ended")
	}
}

// stood reports whether these writes to the entity followed each other. The job's last write
// deleted it, others put it a second before the job ended, and others deleted it before the undo
// wrote it.
// The result was is the entity before the job's last writes.
//
// More than an hour after the job's end, the database can only read whole minutes. In this case the
// entity must have existed at the whole minute before or after the job's end.
func (e *scribbled) stood() (stood bool, was *datastorepb.Entity) {
	last := -1 // index of the job's last write
	for i, w := range e.all {
		if w.by == itself {
			last = i
		}
	}
	if e.all[last].is != nil || len(e.all) < last+3 {
		return false, nil
	}
	first := last
	for first > 0 && e.all[first-1].by == itself {
		first--
	}
	put, deleted, rest := e.all[last+1], e.all[last+2], e.all[last+3:]
	thereAt := func(t time.Time) bool { return !put.at.After(t) && deleted.at.After(t) }
	late := slices.ContainsFunc(rest, func(w wrote) bool { return w.at.Sub(e.ended) > 55*time.Minute })
	minute := e.ended.Truncate(time.Minute)
	return put.by == someone && put.is != nil && deleted.by == someone && deleted.is == nil && thereAt(e.ended) &&
		thereAt(e.ended.Add(-time.Second)) &&
		(!late || thereAt(minute) || thereAt(minute.Add(time.Minute))) &&
		!slices.ContainsFunc(rest, func(w wrote) bool { return w.by == someone }), e.all[first].was
}

// TestTransferSimulation runs jobs whose functions move points between entities: their own, each
// other's, and some that all share. Other clients move points, too, with all kinds of faults. At
// the end, no point may be lost or duplicated. Each entity must have one receipt, and the job's
// counters must agree with the receipts.
func TestTransferSimulation(t *testing.T) {
	testflag.Simulate(t, 2, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulateTransfers(t, seed) })
	})
}

// A purse is an entity with points.
type purse struct{ Points int64 }

func purseKey(i int) *datastore.Key { return datastore.NameKey("Purse", fmt.Sprintf("p-%05d", i), nil) }
func potKey(i int) *datastore.Key   { return datastore.NameKey("Pot", fmt.Sprint(i), nil) }
func slipKey(i int) *datastore.Key  { return datastore.NameKey("Slip", fmt.Sprint(i), nil) }

// moves returns a number, derived from the key, that determines what the function does with a
// purse.
func moves(key *datastore.Key) int {
	h := fnv.New32a()
	h.Write([]byte(key.Name))
	return int(h.Sum32() >> 1)
}

// pointsOf reads the points of an entity by the function's Get. If the entity does not exist, ok is
// false.
func pointsOf(ctx context.Context, e *mapper.Entity[purse], key *datastore.Key) (p purse, ok bool, err error) {
	err = e.Get(ctx, key, &p)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return purse{}, false, nil
	}
	return p, err == nil, err
}

// transfer returns a function that moves points between n purses, some pots, and slips, which are
// entities that hold points until another function takes them.
func transfer(n int, pace time.Duration) func(ctx context.Context, e *mapper.Entity[purse], _ mapper.NoParams) error {
	var mu sync.Mutex
	failed := make(map[string]bool)
	return func(ctx context.Context, e *mapper.Entity[purse], _ mapper.NoParams) error {
		h := moves(e.Key)
		if h%19 == 0 {
			return mapper.Permanent(errors.New("nineteen"))
		}
		mu.Lock()
		first := !failed[e.Key.Name]
		failed[e.Key.Name] = true
		mu.Unlock()
		if h%17 == 0 && first {
			return errors.New("at first")
		}
		time.Sleep(pace)
		moved := int64(h%5 + 1)
		e.Insert(datastore.NameKey("Receipt", e.Key.Name, nil), &purse{moved})
		e.Count("moved", moved)
		switch h / 100 % 6 {
		case 0: // moves points to a pot
			pot, _, err := pointsOf(ctx, e, potKey(h%3))
			if err != nil {
				return err
			}
			pot.Points += moved
			e.Value.Points -= moved
			e.Put(potKey(h%3), &pot)
		case 1: // moves points from another purse, whose function has already run, or runs next
			other, there, err := pointsOf(ctx, e, purseKey((h/7)%n))
			if err != nil || !there || purseKey((h/7)%n).Equal(e.Key) {
				return err
			}
			other.Points -= moved
			e.Value.Points += moved
			e.Put(purseKey((h/7)%n), &other)
		case 2: // moves the points of a slip to this purse, and deletes the slip
			slip, there, err := pointsOf(ctx, e, slipKey(h%20))
			if err != nil {
				return err
			}
			if there {
				e.Value.Points += slip.Points
				e.Delete(slipKey(h % 20))
			}
		case 3: // moves points to a new slip, if it does not exist
			_, there, err := pointsOf(ctx, e, slipKey(h%20))
			if err != nil {
				return err
			}
			if !there {
				e.Insert(slipKey(h%20), &purse{moved})
				e.Value.Points -= moved
			}
		case 4: // moves all points to a pot
			pot, _, err := pointsOf(ctx, e, potKey(h%3))
			if err != nil {
				return err
			}
			pot.Points += e.Value.Points
			e.Put(potKey(h%3), &pot)
			e.Delete(e.Key)
		case 5: // moves points to a new event
			e.Value.Points -= moved
			e.Put(datastore.IncompleteKey("Event", nil), &purse{moved})
			e.Put(datastore.IncompleteKey("Event", nil), &purse{0})
		}
		return nil
	}
}

func simulateTransfers(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 40))
	s := &undoSimulation{
		rng: rng, faults: faults.New(seed, trouble(rng)...), n: 20 + rng.IntN(300),
	}
	reads := func(e *mapper.Entity[purse], _ mapper.NoParams) []*datastore.Key {
		h := moves(e.Key)
		return []*datastore.Key{potKey(h % 3), slipKey(h % 20), purseKey((h / 7) % s.n)}[:h%4]
	}
	function := transfer(s.n, time.Duration(rng.IntN(10))*time.Millisecond)
	m := mapper.Update("transfer", function)
	if rng.IntN(2) == 0 {
		m = mapper.UpdateReading("transfer", reads, function)
	}
	s.faults.Pause()
	s.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: s.faults, PessimisticConcurrency: rng.IntN(3) == 0,
			Retention: 60 * 24 * time.Hour},
		queue: few(int32(1 + rng.IntN(12))), deadline: time.Duration(60+rng.IntN(1200)) * time.Second,
		plain: rng.IntN(4) == 0,
	}, m)
	s.fleet = newFleet(s.world, seed, 1+rng.IntN(4), m)
	s.fleet.fails.Store(true)
	s.fleet.zombies = rng.Float64() / 3
	s.fleet.stops.most = time.Hour
	want := int64(0)
	for i := range s.n {
		_, err := s.client.Put(t.Context(), purseKey(i), &purse{int64(i)})
		s.must(err)
		want += int64(i)
	}
	s.trouble()
	others := s.others(rng.IntN(300), time.Duration(1+rng.IntN(50))*time.Millisecond)
	s.again("start", func() error {
		_, err := m.Start(t.Context(), s.fleet.pick().engine, mapper.Query{Kind: "Purse"}, mapper.NoParams{},
			&mapper.StartOptions{
				ID: "transfer", PageSize: 3 + rng.IntN(60), FailureLimit: -1,
			})
		return err
	})
	status := s.await("transfer")
	s.faults.Pause()
	s.fleet.stops.calm()
	s.fleet.thaw()
	others.Wait()
	time.Sleep(24 * time.Hour) // until late tasks have run
	s.checkTransfers(status, want)
	t.Logf("%d purses, %d processed, %d times again; %d processes died; went wrong: %v", s.n, status.Processed,
		status.Conflicts, s.fleet.deaths(), s.faults.Counts())
}

// others simulates a client that moves points the given number of times, with pauses, and also adds
// points.
func (s *undoSimulation) others(times int, pause time.Duration) *sync.WaitGroup {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
	var people sync.WaitGroup
	key := func() *datastore.Key {
		return []*datastore.Key{purseKey(rng.IntN(s.n)), potKey(rng.IntN(3)), slipKey(rng.IntN(20))}[rng.IntN(3)]
	}
	people.Go(func() {
		for range times {
			from, to := key(), key()
			deletes, adds := rng.IntN(4) == 0, int64(rng.IntN(2)*1000)
			s.once(func(tx *datastore.Transaction) (int64, error) {
				var a, b purse
				if from.Equal(to) {
					return 0, datastore.ErrNoSuchEntity
				}
				if err := tx.Get(from, &a); err != nil {
					return 0, err
				}
				if err := tx.Get(to, &b); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
					return 0, err
				}
				move := a.Points / 2
				var err error
				if deletes {
					move = a.Points
					err = tx.Delete(from)
				} else {
					_, err = tx.Put(from, &purse{a.Points - move})
				}
				if err != nil {
					return 0, err
				}
				_, err = tx.Put(to, &purse{b.Points + move + adds})
				return adds, err
			})
			time.Sleep(time.Duration(rng.Int64N(int64(pause))))
		}
	})
	return &people
}

// once lets another client commit a change. It repeats the transaction until the change has
// certainly taken effect, or there is nothing to change. If an answer is lost, the commit may take
// effect late, and the change happens twice. So each transaction also puts an entity of the kind
// Done, with the number of points that it adds: see noted.
func (s *undoSimulation) once(change func(tx *datastore.Transaction) (added int64, err error)) {
	for {
		done := datastore.NameKey("Done", fmt.Sprint(rand.Uint64()), nil)
		_, err := s.client.RunInTransaction(s.Context(), func(tx *datastore.Transaction) error {
			added, err := change(tx)
			if err == nil {
				_, err = tx.Put(done, &purse{added})
			}
			return err
		}, datastore.MaxAttempts(1))
		switch {
		case errors.Is(err, datastore.ErrNoSuchEntity):
			return
		case s.tookPlace(done):
			return
		case err == nil:
			s.Errorf("a commit has taken place, and left nothing")
		}
		time.Sleep(time.Second)
	}
}

// tookPlace reports whether a transaction has taken effect. If so, it has put the entity with the
// key done.
func (s *undoSimulation) tookPlace(done *datastore.Key) bool {
	for {
		switch err := s.client.Get(s.Context(), done, new(purse)); {
		case err == nil:
			return true
		case errors.Is(err, datastore.ErrNoSuchEntity):
			return false
		}
		time.Sleep(time.Second)
	}
}

// points returns the number of entities of a kind, and the sum of their points.
func (s *undoSimulation) points(kind string) (n int, points int64) {
	var all []purse
	_, err := s.client.GetAll(s.Context(), datastore.NewQuery(kind), &all)
	s.must(err)
	for _, p := range all {
		points += p.Points
	}
	return len(all), points
}

// noted returns how many points the other clients have added. They have added them by calls of the
// method once, which puts an entity with the number of points.
func (s *undoSimulation) noted() int64 {
	_, points := s.points("Done")
	return points
}

// checkTransfers checks that no point was lost or duplicated, and that each purse was processed
// once. There must be want points.
func (s *undoSimulation) checkTransfers(status *mapper.Status, want int64) {
	got := int64(0)
	for _, kind := range []string{"Purse", "Pot", "Slip", "Event"} {
		_, points := s.points(kind)
		got += points
	}
	want += s.noted()
	receipts, moved := s.points("Receipt")
	if got != want {
		s.Errorf("%d points, want %d", got, want)
	}
	if status.State != mapper.StateSucceeded && status.State != mapper.StateSucceededWithFailures ||
		int64(receipts) != status.Processed || moved != status.Counters["moved"] {
		s.Errorf("%d receipts of %d points; the job is %s: %s, has processed %d and counted %v", receipts, moved,
			status.State, status.Error, status.Processed, status.Counters)
	}
	proof, err := s.engine.Job("transfer").Verify(s.Context(), nil)
	if err != nil || len(proof.Problems) > 0 {
		s.Errorf("proof %+v, %v", proof, err)
	}
	failures, _, err := s.engine.Job("transfer").FailuresPage(s.Context(), "")
	s.must(err)
	for _, f := range failures {
		if moves(f.Key)%19 != 0 {
			s.Errorf("%v has failed: %s", f.Key, f.Error)
		}
	}
}
