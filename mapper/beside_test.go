package mapper_test

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// A job beside that of a simulation, in the same processes: its entities are innocent of whatever
// happens to them.

const besideID = "beside"

type other struct{ N int64 }

func otherKey(i int) *datastore.Key { return datastore.NameKey("Beside", fmt.Sprintf("b%04d", i), nil) }

// besideMapper adds 1 to each entity, which takes a while.
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

// checkBeside checks that every entity was added to once, and none is blamed.
func (s *simulation) checkBeside(n int) {
	// its queue may have been purged
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
