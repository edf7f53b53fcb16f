package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestFold adds up a job's records at once, and in parts of different sizes. The results must be
// equal.
func TestFold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		putRanges(t, st, j, 200, func(i int, r *record.Range) {
			r.Entities, r.Processed = int64(i), int64(i)
			r.Finish(time.Now())
		})
		const sum = 200 * 201 / 2
		whole, err := st.Fold(t.Context(), j)
		if err != nil || whole.Processed != sum || whole.Ranges != 201 || whole.Err() != nil {
			t.Fatalf("%+v, %v, %v", whole, err, whole.Err())
		}
		never := func() bool { return false }
		for _, most := range []int{0, 1, 3, 100} {
			d := NewDraft(j)
			parts := 0
			for all := false; !all; parts++ {
				was := d.Ledger.Ranges
				if all, err = st.AddTo(t.Context(), j.Ref(), d, most, never); err != nil {
					t.Fatal(err)
				}
				if got := d.Ledger.Ranges - was; most > 0 && got > int64(most*SlicesOfIDs) {
					t.Errorf("%d at a time: %d records are added", most, got)
				}
			}
			d.Ledger.Close(j)
			if d.Ledger.Processed != sum || d.Ledger.Err() != nil || (parts == 1) != (most == 0 || most == 100) {
				t.Errorf("%d at a time: %d after %d parts, %v", most, d.Ledger.Processed, parts, d.Ledger.Err())
			}
		}
		if err := st.client.Delete(t.Context(), record.RangeKey(j.Ref(), record.RangeID(j.Root(), 7))); err != nil {
			t.Fatal(err)
		}
		if l, err := st.Fold(t.Context(), j); err != nil || l.Err() == nil {
			t.Errorf("without one of them: %v", err)
		}
	})
}

// TestEnough stops adding after a part of a slice's records, and then continues with the rest.
func TestEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		const n = 2*atOnce + 50
		var all []*datastore.Mutation
		for i := range n {
			r := j.RootRange()
			r.ID = fmt.Sprintf("%032x", i) // IDs in the first slice
			all = append(all, r.Insert())
		}
		for some := range slices.Chunk(all, 500) {
			if _, err := st.client.Mutate(t.Context(), some...); err != nil {
				t.Fatal(err)
			}
		}
		d := NewDraft(j)
		for i := range d.From[1:] {
			d.From[i+1] = nowhere
		}
		for i, want := range []int64{atOnce, 2 * atOnce, n, n} {
			whole, err := st.AddTo(t.Context(), j.Ref(), d, 0, func() bool { return true })
			if err != nil || whole != (i >= 2) || d.Ledger.Ranges != want {
				t.Errorf("the %d. time: %d of %d, all %v, %v", i+1, d.Ledger.Ranges, n, whole, err)
			}
		}
	})
}

// TestFirst adds up the records of a job. If there are few, one query must be enough. Each record
// must be added once, no matter where the first query ends.
func TestFirst(t *testing.T) {
	for _, n := range []int{1, 10, atOnce - 1, atOnce, atOnce + 1, 3*atOnce + 7} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t, nil)
			j := run(t, st, "j", nil)
			var all []*datastore.Mutation
			for i := range n - 1 { // one less, because the root is already stored
				r := j.RootRange()
				r.ID = fmt.Sprintf("%x%031x", i*7%SlicesOfIDs, i)
				all = append(all, r.Insert())
			}
			for some := range slices.Chunk(all, 500) {
				if _, err := st.client.Mutate(t.Context(), some...); err != nil {
					t.Fatal(err)
				}
			}
			for _, few := range []bool{false, true} { // whether enough returns true after each call
				d := NewDraft(j)
				for calls, whole := 0, false; !whole; calls++ {
					var err error
					if whole, err = st.AddTo(t.Context(), j.Ref(), d, 0, func() bool { return few }); err != nil ||
						calls > 20 {
						t.Fatalf("%d of %d after %d calls, %v", d.Ledger.Ranges, n, calls, err)
					}
					if calls == 0 && whole != (n < atOnce || !few) {
						t.Errorf("%d records, enough: %v: all %v", n, few, whole)
					}
				}
				if d.Ledger.Ranges != int64(n) {
					t.Errorf("%d of %d records", d.Ledger.Ranges, n)
				}
			}
		})
	}
}

// TestFoldDamaged checks that there is an error, and no sum, if a record can't be added up, no
// matter in which slice of IDs it is.
func TestFoldDamaged(t *testing.T) {
	for _, n := range []int{0, atOnce + 10} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t, nil)
			j, first := &record.Job{ID: "j"}, &record.Job{ID: "first"}
			j.Incarnate(1)
			first.Incarnate(1)
			var all []*datastore.Mutation
			for i := range n + 1 { // the last record of j is damaged, or the first record of the other job
				r := j.RootRange()
				r.ID, r.State = fmt.Sprintf("f%031x", i), record.Done
				if i == n {
					r.Counters = []byte("{")
				}
				all = append(all, r.Insert())
				r = first.RootRange()
				r.ID, r.State, r.Open = fmt.Sprintf("f%031x", i), record.Done, ""
				if i == 0 {
					r.Counters = []byte("{")
				}
				all = append(all, r.Insert())
			}
			for some := range slices.Chunk(all, 500) {
				if _, err := st.client.Mutate(t.Context(), some...); err != nil {
					t.Fatal(err)
				}
			}
			if l, err := st.Fold(t.Context(), j); err == nil {
				t.Errorf("%d records are added up", l.Ranges)
			}
			_, _, sampled := st.SampleTotals(t.Context(), first)
			_, _, live := st.LiveTotals(t.Context(), first)
			if sampled == nil || live == nil {
				t.Errorf("a sample with a damaged record is added up: %v, %v", sampled, live)
			}
			d := NewDraft(j)
			if _, err := st.AddTo(t.Context(), j.Ref(), d, 0, func() bool {
				return n > 0 && d.Ledger.Ranges == 0
			}); err == nil || d.Ledger.Ranges > atOnce {
				t.Errorf("%d records are in the draft, %v", d.Ledger.Ranges, err)
			}
		})
	}
}

// TestQueries counts the queries that read the records of a job. If the records fit in one answer,
// one query must be enough. Otherwise one more is allowed for each slice of IDs with further
// records.
func TestQueries(t *testing.T) {
	for _, c := range []struct {
		name  string
		slice string // the first digit of the IDs of all records
		n     int
		most  int
		known bool // whether the draft already has a record
		want  int
	}{
		{"a small job", "0", 10, 0, false, 1},
		{"a small job, in large parts", "0", 10, atOnce, false, 1},
		{"a small job, in small parts", "0", 10, atOnce - 1, false, SlicesOfIDs},
		{"a small job, after others", "0", 10, 0, true, SlicesOfIDs},
		{"a job with records in the first slice", "0", atOnce + 10, 0, false, 1 + SlicesOfIDs},
		{"a job with records in the last slice", "f", atOnce + 10, 0, false, 2},
		{"a job with many records in one slice", "f", 3*atOnce + 10, 0, false, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := new(refuser)
			st := newStore(t, &emulator.Options{Interceptor: calls.intercept})
			j := &record.Job{ID: "j"}
			j.Incarnate(1)
			var all []*datastore.Mutation
			for i := range c.n {
				r := j.RootRange()
				r.ID = fmt.Sprintf("%s%031x", c.slice, i)
				all = append(all, r.Insert())
			}
			for some := range slices.Chunk(all, 500) {
				if _, err := st.client.Mutate(t.Context(), some...); err != nil {
					t.Fatal(err)
				}
			}
			d := NewDraft(j)
			want := int64(c.n)
			if c.known {
				d.Ledger.Ranges, want = 1, want+1
			}
			calls.refuse(0)
			whole, err := st.AddTo(t.Context(), j.Ref(), d, c.most, func() bool { return false })
			if err != nil || !whole || d.Ledger.Ranges != want || calls.made() != c.want {
				t.Errorf("%s: %d records, all %v, %d queries, %v", c.name, d.Ledger.Ranges, whole, calls.made(), err)
			}
		})
	}
}

// TestKeepDraft stores two drafts of a job, one after the other. The draft with more records must
// stay, unless it is outdated.
func TestKeepDraft(t *testing.T) {
	draft := func(j *record.Job, ranges, link int64) *ledger.Draft {
		d := NewDraft(j)
		d.Ledger.Ranges, d.Link = ranges, link
		return d
	}
	anyUse := func(*record.Job) bool { return true }
	for _, c := range []struct {
		name string
		keep func(j *record.Job) *ledger.Draft // the second draft; the first one has 50 records and link 2
		use  func(*record.Job) bool
		kept bool
		want int64 // number of records in the stored draft
	}{
		{"one of more", func(j *record.Job) *ledger.Draft { return draft(j, 60, 1) }, anyUse, true, 60},
		{"one of fewer", func(j *record.Job) *ledger.Draft { return draft(j, 40, 1) }, anyUse, true, 50},
		{"one that is of no use", func(j *record.Job) *ledger.Draft { return draft(j, 60, 1) },
			func(*record.Job) bool { return false }, false, 50},
		{"one of another epoch", func(j *record.Job) *ledger.Draft {
			d := draft(j, 60, 1)
			d.Epoch++
			return d
		}, anyUse, false, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := run(t, st, "j", nil)
				if d, err := st.LoadDraft(t.Context(), j); err != nil || d.Ledger.Ranges != 0 ||
					len(d.From) != SlicesOfIDs {
					t.Fatalf("at first: %+v, %v", d, err)
				}
				if _, err := st.KeepDraft(t.Context(), j, draft(j, 50, 2), anyUse); err != nil {
					t.Fatal(err)
				}
				kept, err := st.KeepDraft(t.Context(), j, c.keep(j), c.use)
				if err != nil || (kept != nil) != c.kept || kept != nil &&
					(kept.Ledger.Ranges != c.want || kept.Link != 2 ||
						!kept.Kept.Equal(time.Now().Truncate(time.Microsecond))) {
					t.Errorf("%+v, %v", kept, err)
				}
				stored, err := st.LoadDraft(t.Context(), j)
				if err != nil || stored.Ledger.Ranges != c.want || stored.Link != 2 {
					t.Errorf("stored is %+v, %v", stored, err)
				}
				j.Epoch++ // LoadDraft ignores a draft of another epoch
				if d, err := st.LoadDraft(t.Context(), j); err != nil || d.Ledger.Ranges != 0 {
					t.Errorf("of the next epoch: %+v, %v", d, err)
				}
				j.Epoch--
				if err := st.Transact(t.Context(), func(tx *datastore.Transaction) error {
					now, err := GetJob(tx, j.Ref())
					if err != nil || !now.Drafted {
						return errors.Join(err, errors.New("the job does not say that it has a draft"))
					}
					return errors.Join(EndDraft(tx, now), Write(tx, now.Update()))
				}); err != nil {
					t.Fatal(err)
				}
				if now, err := st.LoadJob(t.Context(), j.Ref()); err != nil || now.Drafted {
					t.Errorf("after its end the job still says that it has a draft: %v", err)
				}
				if d, err := st.LoadDraft(t.Context(), j); err != nil || d.Ledger.Ranges != 0 {
					t.Errorf("after its end: %+v, %v", d, err)
				}
			})
		})
	}
}

// largeAndSmall stores a job with 1,000 ranges, and one with eight. Six ranges of the large job
// have most of its entities.
func largeAndSmall(t *testing.T) (st Store, large, small *record.Job) {
	t.Helper()
	st = newStore(t, nil)
	large = run(t, st, "j", nil)
	putRanges(t, st, large, 1000, func(i int, r *record.Range) {
		if i > 5 {
			r.Processed = 10
			r.Finish(time.Now())
			return
		}
		r.Estimate, r.Exact = 100_000, true
	})
	small = run(t, st, "small", func(j *record.Job) { j.Beside = true })
	putRanges(t, st, small, 7, nil)
	return st, large, small
}

// TestTotalsOfSmallJob checks that the totals of a job with few ranges are exact. They must not be
// estimated.
func TestTotalsOfSmallJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, _, small := largeAndSmall(t)
		if sum, estimated, err := st.LiveTotals(t.Context(), small); err != nil || estimated || sum.Ranges != 8 ||
			sum.Sample.Census != nil {
			t.Errorf("a small job: %+v, %v, %v", sum, estimated, err)
		}
		if sum, estimated, err := st.SampleTotals(t.Context(), small); err != nil || estimated || sum.Ranges != 8 {
			t.Errorf("a sample of a small job: %+v, %v, %v", sum, estimated, err)
		}
	})
}

// TestLiveTotals estimates how many entities remain in a job with 1,000 ranges, when a few ranges
// have most of them. After the job has ended, the totals that a clean-up stores must replace the
// estimate.
func TestLiveTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j, _ := largeAndSmall(t)
		sum, estimated, err := st.LiveTotals(t.Context(), j)
		if err != nil || !estimated || sum.Sample.Left != 500_000 || sum.Sample.LeftScale != 1 {
			t.Errorf("%+v, %v, %v", sum.Sample, estimated, err)
		}
		if c := sum.Sample.Census; c == nil || *c != (record.Census{Ranges: 1001, Open: 5}) || sum.Processed != 9960 {
			t.Errorf("the census %+v, and %d processed", c, sum.Processed)
		}
		ended := *j
		ended.State = record.Aborted
		if _, sum, estimated, err := st.SampleEnded(t.Context(), &ended); err != nil || !estimated ||
			sum.Sample.Left != 500_000 {
			t.Errorf("%+v, %v, %v", sum.Sample, estimated, err)
		}
		if _, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			return true, (&record.Totals{Processed: 7}).RecordIn(j)
		}); err != nil {
			t.Fatal(err)
		}
		if _, sum, estimated, err := st.SampleEnded(t.Context(), &ended); err != nil || estimated ||
			sum.Processed != 7 {
			t.Errorf("a clean-up has recorded it: %+v, %v, %v", sum, estimated, err)
		}
	})
}

// TestDraftsOfNoUse checks which stored drafts (sums of some of a job's records) LoadDraft ignores:
// damaged ones, and drafts of another epoch or of a build with other slices.
func TestDraftsOfNoUse(t *testing.T) {
	for name, change := range map[string]func(d *ledger.Draft){
		"of use":        func(*ledger.Draft) {},
		"another epoch": func(d *ledger.Draft) { d.Epoch++ },
		"fewer slices":  func(d *ledger.Draft) { d.From = d.From[1:] },
		"damaged":       func(d *ledger.Draft) { d.Stored = []byte("{") },
	} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t, nil)
			j := run(t, st, "j", nil)
			d := NewDraft(j)
			d.Ledger.Ranges, d.From[0] = 50, nowhere
			d.Encode()
			change(d)
			if _, err := st.client.Put(t.Context(), ledger.DraftKey(j.Ref()), d); err != nil {
				t.Fatal(err)
			}
			got, err := st.LoadDraft(t.Context(), j)
			if err != nil || (got.Ledger.Ranges == 50) != (name == "of use") || len(got.From) != SlicesOfIDs ||
				got.Epoch != j.Epoch || (got.From[0] == nowhere) != (name == "of use") {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		})
	}
}

// TestWithoutCensus estimates how many entities remain in a job with 400 of its 1,000 ranges
// pending. The database can't count them, or there are too many. For an invalid answer there must
// be an error.
func TestWithoutCensus(t *testing.T) {
	testflag.Sequential(t)
	counts := func(n int64) *datastorepb.RunAggregationQueryResponse {
		result := &datastorepb.AggregationResult{AggregateProperties: map[string]*datastorepb.Value{
			"n": {ValueType: &datastorepb.Value_IntegerValue{IntegerValue: n}}}}
		return &datastorepb.RunAggregationQueryResponse{Batch: &datastorepb.AggregationResultBatch{
			AggregationResults: []*datastorepb.AggregationResult{result}, ReadTime: timestamppb.Now()}}
	}
	nothing := counts(0)
	nothing.Batch.AggregationResults[0].AggregateProperties = nil
	for name, c := range map[string]struct {
		answer *datastorepb.RunAggregationQueryResponse
		err    error
		fails  bool
		census bool
	}{
		"it can't count":       {err: status.Error(codes.Unimplemented, "no counts")},
		"there are too many":   {answer: counts(mostCounted)},
		"there are just fewer": {answer: counts(mostCounted - 1), census: true},
		"it does not answer":   {err: status.Error(codes.PermissionDenied, "no"), fails: true},
		"it has no number":     {answer: nothing, fails: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			open := new(atomic.Int64) // number of open transactions
			st := newStore(t, &emulator.Options{Interceptor: func(
				ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
			) (any, error) {
				switch req.(type) {
				case *datastorepb.RunAggregationQueryRequest:
					return c.answer, c.err
				case *datastorepb.BeginTransactionRequest:
					open.Add(1)
				case *datastorepb.CommitRequest, *datastorepb.RollbackRequest:
					open.Add(-1)
				}
				return handler(ctx, req)
			}})
			j := run(t, st, "j", nil)
			putRanges(t, st, j, 1000, func(i int, r *record.Range) {
				if i > 400 {
					r.Processed = 10
					r.Finish(time.Now())
				}
			})
			open.Store(0)
			sum, estimated, err := st.LiveTotals(t.Context(), j)
			if n := open.Load(); n != 0 {
				t.Errorf("%s: %d transactions are open", name, n)
			}
			_, counting := st.CountJobs(t.Context(), []record.Owner{""}, record.Listing{})
			if (err != nil) != c.fails || (counting != nil) != (c.err != nil || c.fails) {
				t.Errorf("%s: %v, %v", name, err, counting)
			}
			if c.fails {
				return
			}
			if !estimated || (sum.Sample.Census != nil) != c.census || len(sum.Sample.Open) != SampleSize {
				t.Errorf("%s: estimated %v, %+v, %d open", name, estimated, sum.Sample.Census, len(sum.Sample.Open))
			}
			about := func(n, of int64) bool { return n > of*3/4 && n < of*5/4 }
			if !c.census && (!about(sum.Pending, 400) || !about(sum.Processed, 6000)) {
				t.Errorf("%s: %d pending and %d processed", name, sum.Pending, sum.Processed)
			}
		})
	}
}
