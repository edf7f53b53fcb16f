package store

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestReserveRate reserves a job's rate for a minute each time. Each reservation must start where
// the previous one ends, until the rate changes or the job ends.
func TestReserveRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em := emulator.ForTest(t, nil)
		client, err := em.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		st := New(client)
		j := run(t, st, "j", func(j *record.Job) { j.Rate = []byte(`{"entities":1}`) })
		now := time.Now()
		reserve := func(j *record.Job) (time.Duration, error) {
			begin, _, err := st.ReserveRate(t.Context(), j, record.RateClockKey(j.Ref()),
				new(time.Duration), func(pace.Queue) (time.Duration, int64) { return time.Minute, 1 })
			return begin.Sub(now), err
		}
		for n := range 3 {
			if at, err := reserve(j); err != nil || at != time.Duration(n)*time.Minute {
				t.Errorf("reservation %d starts after %v, %v", n, at, err)
			}
		}
		if stored, err := st.LoadJob(t.Context(), j.Ref()); err != nil || !stored.Drafted {
			t.Errorf("the job's end does not delete its clock: %+v, %v", stored, err)
		}
		other := *j
		other.Rate = []byte(`{"entities":2}`)
		if at, err := reserve(&other); err != nil || at != 0 {
			t.Errorf("of another rate it starts after %v, %v", at, err)
		}
		if at, err := reserve(&other); err != nil || at != time.Minute {
			t.Errorf("the next one starts after %v, %v", at, err)
		}
		ended := run(t, st, "ended", func(j *record.Job) { j.State, j.Beside = record.Succeeded, true })
		if _, err := reserve(ended); !errors.Is(err, record.ErrState) {
			t.Errorf("a job that has ended: %v", err)
		}
		drafted := run(t, st, "drafted", func(j *record.Job) { j.Drafted, j.Beside = true, true })
		before := em.Usage()
		if at, err := reserve(drafted); err != nil || at != 0 {
			t.Errorf("a job with a draft: %v, %v", at, err)
		}
		if writes := em.Usage().Sub(before).Writes; writes != 1 {
			t.Errorf("a job with a draft, and a new clock: %d writes", writes)
		}
		gone := *j
		gone.ID = "gone"
		if _, err := reserve(&gone); !errors.Is(err, record.ErrNoSuchJob) {
			t.Errorf("a job that is gone: %v", err)
		}
	})
}

// TestEndDraft checks that the end of a job deletes its rate clock, and deletes nothing if there is
// none.
func TestEndDraft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		for _, drafted := range []bool{false, true} {
			j := &record.Job{ID: "j", Incarnation: "i", Drafted: drafted}
			key := record.RateClockKey(j.Ref())
			if _, err := st.client.Put(t.Context(), key, new(record.RateClock)); err != nil {
				t.Fatal(err)
			}
			if err := st.Transact(t.Context(), func(tx *datastore.Transaction) error {
				return EndDraft(tx, j)
			}); err != nil {
				t.Fatal(err)
			}
			err := st.client.Get(t.Context(), key, new(record.RateClock))
			if gone := errors.Is(err, datastore.ErrNoSuchEntity); gone != drafted || j.Drafted {
				t.Errorf("drafted %v: %v, %v", drafted, err, j.Drafted)
			}
		}
	})
}

// TestRateOfClocks reserves a job's rate in three processes whose clocks differ by minutes. Each
// reservation has to start within a few seconds of the time at which it would start if the clocks
// were the same.
func TestRateOfClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		st := New(client)
		j := run(t, st, "j", func(j *record.Job) { j.Rate = []byte(`{"entities":1}`) })
		// A process whose clock is ahead is one that always knows this difference.
		clocks := []time.Duration{0, 3 * time.Minute, 10 * time.Minute}
		start := time.Now()
		for n := range 60 {
			i := (n + n/7) % len(clocks)
			if n > 40 {
				i = 0 // the processes with the fast clocks have died
			}
			begin, _, err := st.ReserveRate(t.Context(), j, record.RateClockKey(j.Ref()), &clocks[i],
				func(pace.Queue) (time.Duration, int64) { return time.Second, 1 })
			if err != nil {
				t.Fatal(err)
			}
			if late := begin.Sub(start) - time.Duration(n)*time.Second; late.Abs() > 3*time.Second {
				t.Errorf("reservation %d, of process %d, starts %v too late", n, i, late)
			}
			time.Sleep(time.Second / 2)
		}
	})
}
