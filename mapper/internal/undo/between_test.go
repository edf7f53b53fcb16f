package undo

import (
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestMoments checks at which times an undo looks whether a deleted entity existed again.
func TestMoments(t *testing.T) {
	for _, c := range []struct {
		name           string
		commit, ended  time.Duration // how long ago; ended 0: the job has not ended
		exact, minutes []time.Duration
	}{
		{"the end, and the middle since", 40 * time.Minute, 30 * time.Minute,
			[]time.Duration{30 * time.Minute, 15 * time.Minute}, nil},
		{"the job has not ended", 40 * time.Minute, 0, []time.Duration{20 * time.Minute}, nil},
		{"it ended when the page was committed", 40 * time.Minute, 40 * time.Minute,
			[]time.Duration{20 * time.Minute}, nil},
		{"every microsecond of the middle is kept", 200 * time.Minute, 118 * time.Minute,
			[]time.Duration{59 * time.Minute}, []time.Duration{118 * time.Minute, 117 * time.Minute}},
		{"only minutes are", 200 * time.Minute, 118*time.Minute + 2*time.Microsecond, nil,
			[]time.Duration{119 * time.Minute, 118 * time.Minute, 60 * time.Minute, 59 * time.Minute}},
	} {
		now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
		u := undoer{history: newHistory()}
		u.history.job = new(record.Job)
		if c.ended != 0 {
			u.history.job.Ended, u.history.ended = now, now.Add(-c.ended) // the time in the record does not matter
		}
		looks, err := moments(t.Context(), past{u}, commit{at: now.Add(-c.commit)}, now)
		if err != nil {
			t.Fatal(err)
		}
		var want []time.Time
		for _, d := range append(c.minutes, c.exact...) { // times longer ago are truncated to minutes
			want = append(want, now.Add(-d))
		}
		if !slices.EqualFunc(looks, want, time.Time.Equal) {
			t.Errorf("%s: %v, want %v", c.name, looks, want)
		}
	}
}

// TestEnded looks for the end of a job by the database's clock. The process that recorded it had a
// wrong clock. For an hour, the result must be right to a second, and then to a minute.
func TestEnded(t *testing.T) {
	for _, off := range []time.Duration{0, -time.Second, time.Minute, -10 * time.Minute, 10 * time.Minute,
		-100 * time.Hour, 100 * time.Hour} {
		for _, ago := range []time.Duration{time.Second, time.Minute, 57 * time.Minute, 61 * time.Minute,
			100 * time.Hour} {
			inWorld(t, 1, nil, func(w *world) {
				time.Sleep(10*time.Minute + 17*time.Second)
				w.off[1] = off
				w.end()
				ended := time.Now()
				time.Sleep(ago)
				u, now := past{w.undoer()}, time.Now()
				at, err := u.ended(w.Context(), now)
				most := time.Second
				if ago > exactly {
					most = time.Minute
				}
				if early := ended.Sub(at); err != nil || early < 0 || early > most {
					t.Errorf("a clock %v ahead, after %v: %v before the end, want at most %v; %v", off, ago, early,
						most, err)
				}
				if n := w.calls(func() { _, err = u.ended(w.Context(), now) }); n > 0 || err != nil {
					t.Errorf("it is looked for again: %d calls, %v", n, err)
				}
			})
		}
	}
}

// TestEndedAgain looks for the end of a job whose failures were retried after its first end. The
// clock of the process that recorded the last end was wrong.
func TestEndedAgain(t *testing.T) {
	for _, off := range []time.Duration{0, time.Minute, -25 * time.Minute, 100 * time.Hour} {
		inWorld(t, 1, nil, func(w *world) {
			time.Sleep(10 * time.Minute)
			w.job.State = record.SucceededWithFailures
			w.end()
			time.Sleep(20 * time.Minute)
			if err := w.job.Retry(record.Selection{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.job.Update()); return err })
			time.Sleep(10 * time.Minute)
			w.off[1] = off
			w.end()
			ended := time.Now()
			time.Sleep(10 * time.Minute)
			at, err := past{w.undoer()}.ended(w.Context(), time.Now())
			if early := ended.Sub(at); err != nil || early < 0 || early > time.Second {
				t.Errorf("a clock %v ahead: %v before the last end, want at most a second; %v", off, early, err)
			}
		})
	}
}

// TestLookBetween undoes a deletion, but the database no longer serves the states since the page.
func TestLookBetween(t *testing.T) {
	inWorld(t, 1, []int64{1}, func(w *world) {
		w.page(0, to{1: gone})
		w.end()
		time.Sleep(time.Minute)
		refused := 0
		w.taps(func(req, _ any, pass func() error) error {
			if readTime(req).After(w.job.Ended) {
				refused++
				return status.Error(codes.InvalidArgument, "the past is not kept")
			}
			return pass()
		})
		w.wantUndo(0, "1 becomes 1")
		if refused == 0 {
			t.Error("no read was refused")
		}
	})
}

// TestLookBetweenOfFastClock undoes a deletion after others have put and deleted the entity. The
// clock of the process is 20 minutes ahead of the database's clock.
func TestLookBetweenOfFastClock(t *testing.T) {
	inWorld(t, 1, []int64{1}, func(w *world) {
		w.page(0, to{1: gone})
		w.end()
		time.Sleep(5 * time.Minute)
		w.somebody(to{1: 9})
		time.Sleep(10 * time.Minute)
		w.somebody(to{1: gone})
		time.Sleep(5 * time.Minute)
		w.begin()
		now := time.Now() // by the database's clock
		time.Sleep(20 * time.Minute)
		w.taps(func(req, resp any, pass func() error) error {
			if readTime(req).After(now) {
				return status.Error(codes.InvalidArgument, "the read time is in the future")
			}
			err := pass()
			if found, ok := resp.(*pb.LookupResponse); ok && err == nil {
				found.ReadTime = timestamppb.New(now)
			}
			return err
		})
		w.wantUndo(0, "1 stays: "+whyDeleted)
	})
}
