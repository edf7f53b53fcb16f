package mapper_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestStatus follows a job of more records than a live status reads.
func TestStatus(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(100 * time.Millisecond)
			a.Value.Balance++
			a.Count("seen", 1)
			return nil
		})
		w := newWorld(t,
			setting{queue: &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 100}}},
			slow)
		var closed atomic.Bool
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if closed.Load() {
				http.NotFound(rw, r)
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		const n = 5000
		w.putAccounts(names(n))
		job, err := slow.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		estimated := false
		for {
			s, err := job.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.State.Ended() {
				break
			}
			if s.Estimated && !estimated {
				// What a status costs shows while nothing else runs.
				closed.Store(true)
				time.Sleep(10 * time.Second)
				before := w.emulator.Usage()
				if _, err := job.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				if used := w.emulator.Usage().Sub(before); used.Reads > 501 || used.Writes+used.SmallOps > 0 {
					t.Errorf("a status cost %+v", used)
				}
				closed.Store(false)
			}
			if s.Estimated {
				estimated = true
				if total := s.Processed + s.Remaining; total < n/2 || total > n*2 {
					t.Errorf("%d processed and %d remaining, of %d", s.Processed, s.Remaining, n)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !estimated {
			t.Error("no status was an estimate")
		}
		// Another process with other mappers can follow it.
		another, err := mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(another.Job(job.ID))
		if s.Estimated || s.Processed != n || s.Counters["seen"] != n || s.Mapper != "slow" ||
			s.Query.Kind != "Account" ||
			s.Created.IsZero() || !s.Ended.After(s.Created) {
			t.Errorf("status %+v", s)
		}
		if _, err := w.engine.Job("none").Status(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
		if _, err := w.engine.Job("none").Wait(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
	})
}
