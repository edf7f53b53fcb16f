package executor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

var errInjected = status.Error(codes.Internal, "injected")

// stored stores records of a job's done ranges: one with some processed entities, and one for each
// failure.
func stored(w *testworld.World, j *record.Job, processed, failures int64) {
	w.Helper()
	root := j.RootRange()
	for n := range failures + 1 {
		r := root.AloneChild(at(100 + n)[0], 1, false, now())
		if r.ID = record.RangeID(root.ID, 1000+n); n == failures {
			r.Alone, r.Processed, r.Entities = false, processed, processed
		} else {
			r.Fail(errBad, now())
		}
		r.Finish(now())
		if _, err := w.Client.Mutate(w.Context(), r.Insert()); err != nil {
			w.Fatal(err)
		}
	}
}

// TestTolerable checks which failures of a page are the function's fault. The job's pages have up
// to 20 entities.
func TestTolerable(t *testing.T) {
	failed := func(n int, err error) (all []record.Failure) {
		for range n {
			all = append(all, record.Failure{Err: err, Attempts: 1, Permanent: fault.IsPermanent(err)})
		}
		return all
	}
	later := fault.RetryAfter(errBad, time.Minute)
	for _, c := range []struct {
		name      string
		failures  []record.Failure
		reached   int
		alone     bool
		tolerant  bool
		lately    pace.Calls // this process's last calls
		processed int64      // number of entities that the job has processed so far
		want      fault.Refusal
	}{
		{name: "none", reached: 20},
		{name: "a few of a page", failures: failed(10, errBad), reached: 20},
		{name: "many of a page", failures: failed(11, errBad), reached: 20, want: fault.Refusal{
			Summary: "the function failed on 11 of 20 entities of a page"}},
		{name: "many of a page, all permanent", failures: failed(11, fault.Permanent(errBad)), reached: 20,
			want: fault.Refusal{Summary: "the function failed on 11 of 20 entities of a page", Final: true}},
		{name: "most are permanent", failures: append(failed(11, fault.Permanent(errBad)), failed(1, errBad)...),
			reached: 20, want: fault.Refusal{Summary: "the function failed on 12 of 20 entities of a page"}},
		{name: "many that the service refuses for now", failures: failed(12, later), reached: 20},
		{name: "many that others change", failures: failed(12, errHot), reached: 20},
		{name: "some say when to try again", failures: append(failed(11, errBad),
			record.Failure{Err: fault.RetryAfter(fault.Permanent(errBad), time.Hour), Attempts: 1}), reached: 20,
			want: fault.Refusal{Summary: "the function failed on 11 of 20 entities of a page"}},
		{name: "of a single entity", failures: failed(1, errBad), reached: 1, alone: true,
			lately: pace.Calls{All: 20, Failed: 20}},
		{name: "recorded by a tolerant job", failures: failed(20, fault.Permanent(errBad)), reached: 20,
			tolerant: true},
		{name: "tried again by a tolerant job", failures: failed(20, errBad), reached: 20, tolerant: true,
			want: fault.Refusal{Summary: "the function failed on 20 of 20 entities of a page"}},
		{name: "some tried again by a tolerant job", reached: 20, tolerant: true,
			failures: append(failed(19, fault.Permanent(errBad)), failed(1, errBad)...),
			want:     fault.Refusal{Summary: "the function failed on 20 of 20 entities of a page"}},
		{name: "half of a small page", failures: failed(2, errBad), reached: 4, lately: pace.Calls{All: 20,
			Failed: 20}},
		{name: "most of a small page, and few lately", failures: failed(3, errBad), reached: 4,
			lately: pace.Calls{All: 20, Failed: 10}},
		{name: "most of a small page, and many lately", failures: failed(3, fault.Permanent(errBad)), reached: 4,
			lately: pace.Calls{All: 30, Failed: 20},
			want:   fault.Refusal{Summary: "the function failed on 20 of the last 30 entities", Final: true}},
		{name: "few of a page, and many lately", failures: failed(5, errBad), reached: 20,
			lately: pace.Calls{All: 30, Failed: 20}},
		{name: "the last calls were a cluster", failures: failed(3, errBad), reached: 4, processed: 5000,
			lately: pace.Calls{All: 30, Failed: 20}},
		{name: "some were busy", failures: failed(3, fault.Permanent(errBad)), reached: 4,
			lately: pace.Calls{All: 30, Failed: 20, Busy: 1},
			want:   fault.Refusal{Summary: "the function failed on 20 of the last 30 entities"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.PageSize, j.Tolerant = 20, c.tolerant
				d := loaded(w, x, j, func(r *record.Range) { r.Alone = c.alone })
				stored(w, j, c.processed, 12)
				x.paces.Brake(j.Ref()).Done(time.Now(), pace.Pass{}, pace.End{Entities: c.lately})
				o := page.Failed(nil)
				o.Reached, o.Failures = c.reached, c.failures
				err := d.tolerable(w.Context(), o)
				got := fault.Refusal{}
				if err != nil && !errors.As(err, &got) {
					w.Fatal(err)
				}
				if got.Summary != c.want.Summary || got.Final != c.want.Final || got.After != c.want.After ||
					err != nil && !errors.Is(got.Cause, c.failures[0].Err) {
					w.Errorf("%+v, want %+v", got, c.want)
				}
			})
		})
	}
}

// TestTolerableUnknown checks that a page is retried if the job's records can't be read.
func TestTolerableUnknown(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		d := loaded(w, x, j)
		x.paces.Brake(j.Ref()).Done(time.Now(), pace.Pass{}, pace.End{Entities: pace.Calls{All: 20, Failed: 20}})
		refuse(w, "RunQuery", errInjected)
		err := d.tolerable(w.Context(), page.Failed(&record.Failure{Err: errBad}))
		if status.Code(err) != codes.Internal || errors.As(err, new(fault.Refusal)) {
			w.Error(err)
		}
	})
}

// TestLimitFailures checks which numbers of failures pause a job.
func TestLimitFailures(t *testing.T) {
	for _, c := range []struct {
		name                string
		limit               int64
		share               float64
		before, tried       int64 // numbers of failures and of entities at the last Resume
		epoch               int64
		own                 int64 // number of failures that the delivery's range has recorded
		single              bool  // whether the range has a single entity, which has failed
		processed, failures int64 // totals of the job
		refused             string
		want                string
		wrong               bool
	}{
		{name: "fewer than allowed", limit: 3, share: 1, own: 1, failures: 2},
		{name: "as many as allowed", limit: 3, share: 1, own: 1, failures: 3},
		{name: "more than allowed", limit: 3, share: 1, own: 1, failures: 4, want: "more than 3 entities have failed"},
		{name: "a single one more", limit: 3, share: 1, single: true, failures: 4,
			want: "more than 3 entities have failed"},
		{name: "of other ranges", limit: 3, share: 1, failures: 4},
		{name: "one, and one is allowed", limit: 1, share: 1, own: 1, failures: 1},
		{name: "two, and one is allowed", limit: 1, share: 1, own: 1, failures: 2,
			want: "more than one entity has failed"},
		{name: "a high limit, for which few ranges count", limit: 1 << 40, share: 1, own: 1, refused: "RunQuery"},
		{name: "no limit", limit: -1, share: 1, own: 1, failures: 100},
		{name: "not even one", limit: 0, share: 1, own: 1, failures: 1},
		{name: "ten are too few for a share", limit: -1, share: 0.1, own: 1, failures: 10, processed: 10},
		{name: "a larger share", limit: -1, share: 0.1, own: 1, failures: 11, processed: 98,
			want: "about 11 of 109 entities have failed"},
		{name: "just that share", limit: -1, share: 0.1, own: 1, failures: 11, processed: 99},
		{name: "a smaller share", limit: -1, share: 0.1, own: 1, failures: 11, processed: 100},
		{name: "the larger part before a resume", limit: -1, share: 0.1, before: 5, tried: 10, own: 1, failures: 15,
			processed: 10},
		{name: "a large part since a resume", limit: -1, share: 0.1, before: 5, tried: 900, own: 1, failures: 16,
			processed: 900, want: "about 11 of 16 entities have failed"},
		{name: "a share, and somebody has resumed the job", limit: -1, share: 0.1, epoch: 1, own: 1, failures: 20},
		{name: "they can't be counted", limit: 3, share: 1, own: 1, failures: 4, refused: "RunQuery",
			wrong: true},
		{name: "the share can't be read", limit: -1, share: 0.5, own: 1, failures: 40, refused: "RunQuery",
			wrong: true},
		{name: "the job can't be paused", limit: 3, share: 1, own: 1, failures: 4, refused: "Commit", wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Limit, j.LimitShare, j.Failures, j.Tried, j.Epoch = c.limit, c.share, c.before, c.tried, c.epoch
				d := loaded(w, x, j)
				if d.record.Recorded = c.own; c.single {
					d.record.Failed = j.ID
				}
				stored(w, j, c.processed, c.failures)
				known := *d.job
				known.Epoch = 0
				if d.job = &known; c.refused != "" {
					refuse(w, c.refused, errInjected)
				}
				err := d.limitFailures(w.Context())
				w.Intercept(nil)
				got := w.Job("j")
				if (err != nil) != c.wrong || err != nil && status.Code(err) != codes.Internal {
					w.Errorf("%v", err)
				}
				if (got.State == record.Paused) != (c.want != "") || !strings.HasSuffix(got.Error, c.want) ||
					d.job.State != got.State {
					w.Errorf("%s: %s; the delivery knows that it is %s", got.State, got.Error, d.job.State)
				}
			})
		})
	}
}

// TestOneOf checks which share of the ranges counts the failures, for a job with a high limit.
func TestOneOf(t *testing.T) {
	chosen := make(map[int]int)
	for i := range int64(1000) {
		d := &delivery{record: &record.Range{ID: record.RangeID("r", i)}}
		for _, n := range []int{0, 1, 10} {
			if d.oneOf(n) {
				chosen[n]++
			}
		}
	}
	if chosen[0] != 1000 || chosen[1] != 1000 || chosen[10] < 70 || chosen[10] > 130 {
		t.Errorf("chosen %v of 1000", chosen)
	}
	if d := (&delivery{record: &record.Range{ID: "no hash"}}); !d.oneOf(1000) {
		t.Error("a range whose ID tells nothing counts no failures")
	}
}
