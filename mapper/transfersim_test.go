package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestTransferSimulation runs jobs whose functions read and write each other's entities, and
// entities of which there are few, while others do, and while everything goes wrong that can.
// Whatever they do moves points: in the end as many are there as were put there, each entity has
// its receipt once, and the job has counted what the receipts say.
func TestTransferSimulation(t *testing.T) {
	testflag.Simulate(t, 6, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulateTransfers(t, seed) })
	})
}

// A purse has points.
type purse struct{ Points int64 }

func purseKey(i int) *datastore.Key { return datastore.NameKey("Purse", fmt.Sprintf("p-%05d", i), nil) }
func potKey(i int) *datastore.Key   { return datastore.NameKey("Pot", fmt.Sprint(i), nil) }
func slipKey(i int) *datastore.Key  { return datastore.NameKey("Slip", fmt.Sprint(i), nil) }

// moves returns a number that says what becomes of a purse.
func moves(key *datastore.Key) int {
	h := fnv.New32a()
	h.Write([]byte(key.Name))
	return int(h.Sum32() >> 1)
}

// pointsOf reads points with a function's Get; none, if they are not there.
func pointsOf(ctx context.Context, e *mapper.Entity[purse], key *datastore.Key) (p purse, ok bool, err error) {
	err = e.Get(ctx, key, &p)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return purse{}, false, nil
	}
	return p, err == nil, err
}

// transfer moves points between the purses of n, pots and slips.
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
		case 0: // to a pot
			pot, _, err := pointsOf(ctx, e, potKey(h%3))
			if err != nil {
				return err
			}
			pot.Points += moved
			e.Value.Points -= moved
			e.Put(potKey(h%3), &pot)
		case 1: // from another purse, which may have been dealt with, or may be next
			other, there, err := pointsOf(ctx, e, purseKey((h/7)%n))
			if err != nil || !there || purseKey((h/7)%n).Equal(e.Key) {
				return err
			}
			other.Points -= moved
			e.Value.Points += moved
			e.Put(purseKey((h/7)%n), &other)
		case 2: // a slip is cashed
			slip, there, err := pointsOf(ctx, e, slipKey(h%20))
			if err != nil {
				return err
			}
			if there {
				e.Value.Points += slip.Points
				e.Delete(slipKey(h % 20))
			}
		case 3: // a slip is written, if there is none
			_, there, err := pointsOf(ctx, e, slipKey(h%20))
			if err != nil {
				return err
			}
			if !there {
				e.Insert(slipKey(h%20), &purse{moved})
				e.Value.Points -= moved
			}
		case 4: // all goes into a pot
			pot, _, err := pointsOf(ctx, e, potKey(h%3))
			if err != nil {
				return err
			}
			pot.Points += e.Value.Points
			e.Put(potKey(h%3), &pot)
			e.Delete(e.Key)
		case 5: // as an event
			e.Value.Points -= moved
			e.Put(datastore.IncompleteKey("Event", nil), &purse{moved})
			e.Put(datastore.IncompleteKey("Event", nil), &purse{0})
		}
		return nil
	}
}

func simulateTransfers(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 40))
	s := &undoSimulation{rng: rng, faults: emulator.NewFaults(seed, trouble(rng)...), n: 20 + rng.IntN(300)}
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
	time.Sleep(24 * time.Hour) // for what is late
	s.checkTransfers(status, want)
	t.Logf("%d purses, %d processed, %d times again; %d processes died; went wrong: %v", s.n, status.Processed,
		status.Conflicts, s.fleet.deaths(), s.faults.Counts())
}

// others has another client move points so often, with pauses, and add some.
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

// once has another client commit a change, again until it is known that it has taken place, or that
// there is nothing to change: an entity is not there. A commit whose answer is lost may take place
// late, and the change twice. So each commit puts an entity of its own beside, with what the change
// has added: see noted.
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

// tookPlace reports whether a commit has taken place, by an entity that it has written.
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

// points returns how many entities of a kind there are, and how many points they have.
func (s *undoSimulation) points(kind string) (n int, points int64) {
	var all []purse
	_, err := s.client.GetAll(s.Context(), datastore.NewQuery(kind), &all)
	s.must(err)
	for _, p := range all {
		points += p.Points
	}
	return len(all), points
}

// noted returns what others have added.
func (s *undoSimulation) noted() int64 {
	_, points := s.points("Done")
	return points
}

// checkTransfers checks that no point was lost, or is there twice, and that each purse has had its
// turn once.
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
