package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Fold reads the records of all ranges of a job, and returns their sum as a ledger. The ledger says
// whether the records prove that the job has processed each entity.
func (st Store) Fold(ctx context.Context, job *record.Job) (*ledger.Ledger, error) {
	d := NewDraft(job)
	if _, err := st.AddTo(ctx, job.Ref(), d, 0, func() bool { return false }); err != nil {
		return nil, err
	}
	d.Ledger.Close(job)
	return &d.Ledger, nil
}

// FoldFew adds up all records of a small job, and returns the sum as a ledger. A job is small if
// its records fit in one answer of the database. most is the largest number of records that may be
// added up without a draft.
//
// FoldFew returns false in two cases:
// FoldFew adds up the records of all ranges of a small job, and returns the sum as a ledger. A job
// is small if its records fit in one answer of the database. The argument most is the largest
// number of records that may be added up in one call.
func (st Store) FoldFew(ctx context.Context, job *record.Job, most int) (l *ledger.Ledger, all bool, err error) {
	if most < atOnce {
		return nil, false, nil
	}
	d := NewDraft(job)
	if all, err = st.addFirst(ctx, job.Ref(), d); !all {
		return nil, false, err
	}
	d.Ledger.Close(job)
	return &d.Ledger, true, nil
}

// nowhere is greater than all IDs. In Draft.From, it says that all records of a slice of IDs are
// added up.
const nowhere = "g"

// atOnce is the approximate number of records in one answer of the database.
const atOnce = 300

// NewDraft returns an empty draft, to which a caller adds the records of a job's ranges.
func NewDraft(job *record.Job) *ledger.Draft {
	d := &ledger.Draft{Epoch: job.Epoch, From: make([]string, SlicesOfIDs)}
	for i := range d.From {
		d.From[i], _ = SliceOfIDs(int64(i))
	}
	return d
}

// AddTo adds the next records of a job's ranges to a draft, which has the sum of some of them. It
// adds up to most records of each slice of IDs, or all if most is 0. If enough returns true, it
// stops earlier. AddTo returns true if the draft then has all records. After an error, the draft is
// unchanged.
func (st Store) AddTo(
	ctx context.Context, job record.Ref, d *ledger.Draft, most int, enough func() bool,
) (all bool, err error) {
	if d.Ledger.Ranges == 0 && (most == 0 || most >= atOnce) {
		if all, err := st.addFirst(ctx, job, d); err != nil || enough() {
			return all, err
		}
	}
	var parts [SlicesOfIDs]ledger.Ledger
	var next [SlicesOfIDs]string
	err = inSlices(ctx, job, func(ctx context.Context, i int) (err error) {
		next[i], err = st.addSlice(ctx, job, &parts[i], d.From[i], i, most, enough)
		return err
	})
	if err != nil {
		return false, err
	}
	all = true
	for i := range parts {
		d.Ledger.Merge(&parts[i])
		d.From[i] = next[i]
		all = all && next[i] == nowhere
	}
	return all, nil
}

// addFirst adds the first records of a job's ranges to an empty draft, by one query. For a small
// job these are all. It returns true if the draft has all records.
func (st Store) addFirst(ctx context.Context, job record.Ref, d *ledger.Draft) (all bool, err error) {
	n, last, sum := 0, "", ledger.Ledger{}
	prefix := record.RangePrefix(job)
	err = st.Each(ctx, Records(job, "", "").Limit(atOnce), func(r *record.Range) error {
		n, last = n+1, strings.TrimPrefix(r.Stored.Name, prefix)
		return sum.Add(r)
	})
	if err != nil {
		return false, err
	}
	d.Ledger.Merge(&sum)
	for i := range d.From {
		from, to := SliceOfIDs(int64(i))
		switch {
		case n < atOnce || to != "" && to <= last:
			d.From[i] = nowhere
		case from <= last:
			d.From[i] = last + "0"
		}
	}
	return n < atOnce, nil
}

// addSlice adds the next records of a slice of IDs to a ledger. It returns the ID from which the
// next call for this slice must continue.
func (st Store) addSlice(
	ctx context.Context, job record.Ref, sum *ledger.Ledger, from string, slice, most int, enough func() bool,
) (next string, err error) {
	if from == nowhere {
		return from, nil
	}
	_, to := SliceOfIDs(int64(slice))
	q := Records(job, from, to)
	if most > 0 {
		q = q.Limit(most)
	}
	errEnough := errors.New("enough")
	n, prefix := 0, record.RangePrefix(job)
	err = st.Each(ctx, q, func(r *record.Range) error {
		if err := sum.Add(r); err != nil {
			return err
		}
		// As in Marked, this is less than the next ID. It is made from the record's name, because
		// the ID in a damaged record may be wrong.
		next = strings.TrimPrefix(r.Stored.Name, prefix) + "0"
		if n++; n%atOnce == 0 && enough() {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return next, nil
	case err == nil && (most == 0 || n < most):
		return nowhere, nil
	}
	return next, err
}

// LoadDraft reads the stored draft of a job, which is the sum of some of its records. If there is
// no draft of the job's present epoch, it returns an empty one.
func (st Store) LoadDraft(ctx context.Context, job *record.Job) (*ledger.Draft, error) {
	return draftOf(job, func(key *datastore.Key, d *ledger.Draft) error { return st.client.Get(ctx, key, d) })
}

func draftOf(job *record.Job, get func(*datastore.Key, *ledger.Draft) error) (*ledger.Draft, error) {
	d := new(ledger.Draft)
	err := property.IgnoreUndeclared(get(ledger.DraftKey(job.Ref()), d))
	if err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil, fmt.Errorf("job %s: %w", job.ID, err)
	}
	if d.Epoch != job.Epoch || len(d.From) != SlicesOfIDs || d.Decode() != nil {
		return NewDraft(job), nil
	}
	return d, nil
}

// KeepDraft stores a draft, so that the next task can continue to add up the job's records. It
// calls ofUse with the job's record. If ofUse returns false, or the job has another epoch than the
// draft, it stores nothing and returns nil. Otherwise it returns the draft from which to continue.
// This is the given one, or the stored one if that has more records.
func (st Store) KeepDraft(
	ctx context.Context, job *record.Job, d *ledger.Draft, ofUse func(*record.Job) bool,
) (kept *ledger.Draft, err error) {
	err = st.Transact(ctx, func(tx *datastore.Transaction) error {
		kept = nil
		j, err := GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		if j.Epoch != d.Epoch || !ofUse(j) {
			return ErrNothing
		}
		stored, err := draftOf(j, func(key *datastore.Key, d *ledger.Draft) error { return tx.Get(key, d) })
		if err != nil {
			return err
		}
		kept = d.Further(stored)
		kept.Kept = time.Now().UTC().Truncate(time.Microsecond)
		kept.Encode()
		all := []*datastore.Mutation{datastore.NewUpsert(ledger.DraftKey(job.Ref()), kept)}
		if !j.Drafted {
			j.Drafted = true
			all = append(all, j.Update())
		}
		return Write(tx, all...)
	})
	if err != nil {
		return nil, fmt.Errorf("keep a draft of job %s: %w", job.ID, err)
	}
	return kept, nil
}

// EndDraft deletes a job's draft (the sum of some of its records) and its rate clocks, if the job
// has them. The caller must write the job's record in the same transaction.
func EndDraft(tx *datastore.Transaction, j *record.Job) error {
	if !j.Drafted {
		return nil
	}
	j.Drafted = false
	return Write(tx, datastore.NewDelete(ledger.DraftKey(j.Ref())), datastore.NewDelete(record.RateClockKey(j.Ref())),
		datastore.NewDelete(record.CallClockKey(j.Ref())))
}

// SampleEnded returns the totals of a job that has ended and has no totals in its record. It
// estimates them as [Store.LiveTotals] does. If a clean-up stores the exact totals meanwhile,
// SampleEnded returns these.
func (st Store) SampleEnded(
	ctx context.Context, job *record.Job,
) (_ *record.Job, sum record.Totals, estimated bool, err error) {
	if sum, estimated, err = st.LiveTotals(ctx, job); err != nil {
		return nil, sum, false, err
	}
	now, err := st.LoadJob(ctx, job.Ref())
	if err == nil && len(now.Totals) > 0 {
		sum, err = now.RecordedTotals()
		return now, sum, false, err
	}
	return job, sum, estimated, err
}

// SampleTotals estimates a job's totals from a sample of the records of its ranges. If the sample
// has all records, the totals are exact, and estimated is false.
func (st Store) SampleTotals(ctx context.Context, job *record.Job) (sum record.Totals, estimated bool, err error) {
	all, estimated, err := st.sampleSum(ctx, job)
	if err != nil {
		return record.Totals{}, false, err
	}
	return all.Totals, estimated, nil
}

func (st Store) sampleSum(ctx context.Context, job *record.Job) (sum ledger.Sum, estimated bool, err error) {
	sum, scale, err := st.sumOf(ctx, job.Ref(), "")
	sum.Close(job)
	if err != nil || scale == 1 {
		return sum, false, err
	}
	sum.Scale(scale)
	return sum, true, nil
}

// sumOf adds up a sample of the records of a job's ranges that have a mark, see [Marked]. The
// result scale is the number of records for which each sampled record stands.
func (st Store) sumOf(ctx context.Context, job record.Ref, mark string) (sum ledger.Sum, scale float64, err error) {
	sum.Sample = record.NewSample()
	all, scale, err := st.Sample(ctx, job, mark, SampleSize)
	for _, r := range all {
		if err == nil {
			err = sum.Add(r)
		}
	}
	return sum, scale, err
}

// LiveTotals estimates a job's totals as [Store.SampleTotals] does, but more accurately. It takes a
// separate sample of the pending ranges, because a few of them may have most of the remaining
// entities. It also counts the records. The bool says whether the totals are estimated.
func (st Store) LiveTotals(ctx context.Context, job *record.Job) (record.Totals, bool, error) {
	sum, scale, err := st.sumOf(ctx, job.Ref(), "")
	sum.Close(job)
	if err != nil || scale == 1 {
		return sum.Totals, false, err
	}
	census, err := st.Census(ctx, job.Ref())
	if err != nil {
		return sum.Totals, false, err
	}
	open, openScale, err := st.sumOf(ctx, job.Ref(), "open")
	switch {
	case err != nil:
		return sum.Totals, false, err
	case census != nil:
		sum.SetCensus(*census, &open)
		return sum.Totals, true, nil
	}
	open.Scale(openScale)
	sum.Scale(scale)
	sum.SetPending(&open)
	return sum.Totals, true, nil
}

// mostCounted is the largest number of records that [Store.Census] counts for a job. Counting 1,000
// records costs one read.
const mostCounted = 250_000

// Census counts the records of a job's ranges, all at the same moment. It returns nil if the
// database can't count, or if there are more than mostCounted records. In a context of [Sharing],
// it counts only once.
func (st Store) Census(ctx context.Context, job record.Ref) (*record.Census, error) {
	return sharedIn(ctx, job, func() (*record.Census, error) { return st.census(ctx, job) })
}

func (st Store) census(ctx context.Context, job record.Ref) (*record.Census, error) {
	var c record.Census
	tx, err := st.client.NewTransaction(ctx, datastore.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // the transaction only reads
	group, ctx := errgroup.WithContext(ctx)
	for _, count := range []struct {
		n *int64
		q *datastore.Query
	}{{&c.Ranges, Records(job, "", "")}, {&c.Open, Marked("open", job, "")}, {&c.Failed, Marked("failed", job, "")}} {
		group.Go(func() error {
			q := count.q.Limit(mostCounted).Transaction(tx)
			result, err := st.client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount("n"))
			if err != nil {
				return err
			}
			value, ok := result["n"].(*datastorepb.Value)
			if !ok {
				return fmt.Errorf("the answer to a count has %T", result["n"])
			}
			*count.n = value.GetIntegerValue()
			return nil
		})
	}
	switch err := group.Wait(); {
	case status.Code(err) == codes.Unimplemented:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("count the records of job %s: %w", job.ID, err)
	case c.Ranges == mostCounted:
		return nil, nil
	}
	return &c, nil
}
