package mapper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// TestUndoSimulation undoes jobs that have ended, or were aborted on their way, while everything goes wrong that can and others write to the
// same entities: before, meanwhile and afterwards. What every commit has done to every entity says what has to be there in the end.
func TestUndoSimulation(t *testing.T) {
	seed, n := testflag.Seed(t), *seeds
	if n == 0 {
		if n = 12; testing.Short() {
			n = 2
		}
	}
	for i := range uint64(n) {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
			if flag.Lookup("test.failfast").Value.String() != "true" { // which has no effect on parallel tests
				t.Parallel()
			}
			synctest.Test(t, func(t *testing.T) { simulateUndo(t, seed+i) })
		})
	}
}

// A writer is who has committed something.
type writer string

const (
	someone writer = "another client"
	theJob  writer = "the job"
	theUndo writer = "the undo"
)

// A write is what a commit did to an entity.
type write struct {
	by      writer
	version int64
}

// A history has the writes to all entities, in their order. It sees what the database does, which no fault stands in front of.
type history struct {
	mu     sync.Mutex
	writes map[string][]write // by key
	keys   map[string]*datastore.Key
}

func (h *history) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	committed, ok := resp.(*datastorepb.CommitResponse)
	if !ok || err != nil {
		return resp, err
	}
	by, all := someone, keysOfCommit(req.(*datastorepb.CommitRequest))
	for _, key := range all {
		switch {
		case key.Path[0].Kind != mapper.RangeKind:
		case strings.Contains(key.Path[0].GetName(), ".undo-done."):
			by = theUndo
		case strings.Contains(key.Path[0].GetName(), ".done.") && by == someone:
			by = theJob
		}
	}
	at := commitTime(committed).AsTime().UnixMicro()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, key := range all {
		if given := committed.MutationResults[i].GetKey(); given != nil { // the database has completed it
			key = given
		}
		k := pbkey.Of(key)
		h.writes[k.String()], h.keys[k.String()] = append(h.writes[k.String()], write{by, at}), k
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

// An undoSimulation is a job and its undo in a world that a seed has chosen.
type undoSimulation struct {
	*world
	rng     *rand.Rand
	faults  *emulator.Faults
	fleet   *fleet
	history *history
	n       int // accounts
}

func simulateUndo(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 20))
	s := &undoSimulation{
		rng: rng, faults: emulator.NewFaults(seed, trouble(rng)...), n: 50 + rng.IntN(400),
		history: &history{writes: make(map[string][]write), keys: make(map[string]*datastore.Key)},
	}
	s.faults.Pause()
	s.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: s.faults, Pessimistic: rng.IntN(3) == 0, Interceptor: s.history.intercept, Retention: 60 * 24 * time.Hour},
		queue:    few(int32(1 + rng.IntN(20))), deadline: time.Duration(60+rng.IntN(1200)) * time.Second,
	}, meddler)
	s.fleet = newFleet(s.world, seed, 1+rng.IntN(4), meddler)
	s.fleet.fails.Store(true) // a tenth of the accounts do
	s.fleet.zombies = rng.Float64() / 3
	s.fleet.stops.most = time.Hour
	putMeddled(t, s.client, s.n)

	s.trouble()
	s.again("start", func() error {
		_, err := meddler.Start(t.Context(), s.fleet.pick().engine, mapper.Query{Kind: "Account"}, credit{7}, &mapper.StartOptions{ID: "done", PageSize: 5 + rng.IntN(50), FailureLimit: -1})
		return err
	})
	others := s.disturb(rng.IntN(80))
	if rng.IntN(3) == 0 {
		time.Sleep(time.Duration(math.Pow(2000, rng.Float64()) * float64(10*time.Millisecond)))
		s.again("abort", func() error { return s.fleet.pick().engine.Job("done").Abort(t.Context()) })
	}
	s.await("done")
	if rng.IntN(2) == 0 {
		others.Wait()
	}
	s.disturb(rng.IntN(40)).Wait()
	s.trouble()
	others = s.disturb(rng.IntN(40))
	s.again("undo", func() error {
		_, err := s.fleet.pick().engine.Job("done").Undo(t.Context(), &mapper.StartOptions{PageSize: 1 + rng.IntN(5), FailureLimit: -1})
		return err
	})
	status := s.await("undo-done")
	s.faults.Pause()
	for tries := 0; status.State != mapper.Succeeded && tries < 5; tries++ {
		job := s.engine.Job("undo-done")
		failures, _, err := job.Failures(t.Context(), "")
		t.Logf("the undo has ended as %q %s: %v %v", status.State, status.Error, failures, err)
		s.again("retry", func() error {
			if status.State == mapper.Failed {
				return job.Resume(t.Context())
			}
			return job.Retry(t.Context())
		})
		status = s.await("undo-done")
	}
	if status.State != mapper.Succeeded {
		t.Errorf("%+v", status)
	}
	others.Wait()
	s.fleet.thaw()
	time.Sleep(24 * time.Hour) // for what is late, and wakes
	s.check(leftBy(t, s.engine.Job("undo-done")))
	if proof, err := s.engine.Job("undo-done").Verify(t.Context()); err != nil || len(proof.Problems) > 0 {
		t.Errorf("%+v, %v", proof, err)
	}
	t.Logf("%d accounts, %v; %d processes died; went wrong: %v", s.n, status.Counters, s.fleet.deaths(), s.faults.Counts())
}

// trouble has everything go wrong.
func (s *undoSimulation) trouble() {
	s.faults.Resume()
	s.fleet.stops.allow(s.rng.IntN(8), math.Pow(1000, -s.rng.Float64()))
	s.fleet.stops.freeze(s.rng.IntN(3), math.Pow(1000, -s.rng.Float64()))
	s.fleet.stops.kill(s.rng.IntN(4), 0.1*math.Pow(1000, -s.rng.Float64()))
}

// again does what a person would do: again after each error.
func (s *undoSimulation) again(what string, do func() error) {
	for range 1000 {
		done := make(chan error, 1)
		go func() { done <- do() }()
		select {
		case err := <-done:
			if err == nil || errors.Is(err, mapper.ErrState) && what == "abort" {
				return
			}
		case <-time.After(10 * time.Minute): // its process is frozen
		}
		s.fleet.thaw()
		time.Sleep(time.Second)
	}
	s.Fatalf("%s: it never succeeds", what)
}

// await waits until a job has ended.
func (s *undoSimulation) await(id string) *mapper.Status {
	for range 10_000 {
		if status, err := s.engine.Job(id).Status(s.Context()); err == nil && status.State.Ended() {
			return status
		}
		time.Sleep(time.Minute)
		s.fleet.thaw()
		_ = s.engine.Revive(s.Context())
	}
	s.Fatalf("job %s does not end", id)
	return nil
}

// disturb has another client write so often.
func (s *undoSimulation) disturb(times int) *sync.WaitGroup {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
	var people sync.WaitGroup
	people.Go(func() {
		for range times {
			name := fmt.Sprintf("a-%05d", rng.IntN(s.n+5))
			key := datastore.NameKey([]string{"Account", "Note"}[rng.IntN(2)], name, nil)
			if rng.IntN(4) == 0 {
				_ = s.client.Delete(s.Context(), key)
			} else {
				_, _ = s.client.Put(s.Context(), key, &datastore.PropertyList{{Name: "Mine", Value: rng.Int64()}, {Name: "Balance", Value: int64(1)}})
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
	})
	return &people
}

// image returns an entity as it was at a version: nil if it was not there.
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

// check checks each entity that the job has written, and all others, by what each commit has done.
func (s *undoSimulation) check(left map[string]string) {
	restored, leaves := 0, 0
	for name, writes := range s.history.writes {
		key := s.history.keys[name]
		if strings.HasPrefix(key.Kind, "Scattermap") {
			continue
		}
		writes = slices.DeleteFunc(slices.Clone(writes), func(w write) bool { // that have deleted nothing
			return w.by == someone && s.image(key, w.version-1) == nil && s.image(key, w.version) == nil
		})
		at := -1
		for i, w := range writes {
			if w.by == theJob {
				if at >= 0 {
					s.Fatalf("the job has written %s twice: %v", name, writes)
				}
				at = i
			}
		}
		undone := func(i int) bool { return i < len(writes) && writes[i].by == theUndo }
		_, listed := left[name]
		var was, is *datastorepb.Entity
		if at >= 0 {
			was, is = s.image(key, writes[at].version-1), s.image(key, writes[at].version)
		}
		back := false             // and forth
		if at >= 0 && is == nil { // what the job has deleted, and somebody has put and deleted since, is as the job has left it
			since := writes[at+1:]
			for i, w := range since {
				if w.by == someone && s.image(key, w.version) == nil && !slices.ContainsFunc(since[:i], func(w write) bool { return w.by == theUndo }) {
					writes, back = append(slices.Clone(writes[:at+1]), since[i+1:]...), true
				}
			}
		}
		n := 0
		for i := range writes {
			if undone(i) {
				n++
			}
		}
		switch {
		case at < 0 || was == nil && is == nil:
			if n > 0 || listed {
				s.Errorf("%s, which the job has not changed, is undone, or listed as %q: %v", name, left[name], writes)
			}
		case undone(at + 1):
			restored++
			if got := s.image(key, writes[at+1].version); n != 1 || listed || !proto.Equal(was, got) {
				s.Errorf("%s is undone %d times, listed as %q; it was %v, and became %v: %v", name, n, left[name], was, got, writes)
			}
		case at+1 < len(writes): // somebody else was there before the undo
			if listed {
				leaves++
			}
			wasBack := slices.ContainsFunc(writes[at+1:], func(w write) bool { // perhaps when the undo looked
				now := s.image(key, w.version)
				return was == nil && now == nil || was != nil && now != nil && proto.Equal(was, now)
			})
			if n > 0 || !listed && !wasBack {
				s.Errorf("%s, which somebody has changed since, is undone %d times, listed as %q: %v", name, n, left[name], writes)
			}
		case back && listed: // when the undo came to it, it was there
			leaves++
		case !proto.Equal(was, is):
			s.Errorf("%s is not undone, listed as %q: %v", name, left[name], writes)
		}
	}
	if leaves < len(left) {
		s.Errorf("%d entities are listed, and %d of them were changed since: %v", len(left), leaves, left)
	}
	s.Logf("%d entities restored, %d left", restored, leaves)
}
