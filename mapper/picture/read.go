package picture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Picture has the ranges of a job, or a random sample of them, in the order of keys.
type Picture struct {
	Ranges    []Range `json:"ranges"`
	Estimated bool    `json:"estimated"` // whether Ranges is a sample, so that each range stands for several

	State mapper.State `json:"state"`          // the job's state
	Undo  string       `json:"undo,omitempty"` // the ID of the job that undoes this one; empty: none

	Begun time.Time `json:"begun"` // when the job was started
	Until time.Time `json:"until"` // when the job ended, or when the picture was taken
	Ended bool      `json:"ended"` // whether the job has ended
	// Gone says that the job was cleaned up. Then Ranges is empty, even if some records remain.
	Gone bool `json:"gone,omitempty"`

	// Causes are the causes of the job's failures, from up to 250 of them, most frequent first.
	// History lists the actions on the job, oldest first. Both are read with the records.
	Causes  []mapper.FailureCause `json:"causes,omitempty"`
	History []mapper.HistoryEntry `json:"history,omitempty"`
}

// ErrNoSuchRange says that the job has no range with the ID.
var ErrNoSuchRange = errors.New("the job has no range of this ID")

// Of returns the picture of a job. If the job has fewer than 250 ranges, the picture has all of
// them. Larger jobs are sampled: up to 250 ranges, 250 pending ranges and 250 failures. That takes
// up to four calls, and costs up to 751 reads. If the job has not ended, its records are also
// counted, in four calls, at a read for 1,000 records. If there is no such job, the error is
// [mapper.ErrNoSuchJob].
func Of(ctx context.Context, client *datastore.Client, id string) (*Picture, error) {
	p, err := read(ctx, store.New(client).Asked(), id, estimate.Queue{}, false)
	if err != nil {
		return nil, fmt.Errorf("picture: %w", err)
	}
	return p, nil
}

// Look returns the status of an engine's job, as [mapper.Job.Status] does, and its picture. Both
// are calculated from the same reads. Together they cost about 750 reads at most, and one call more
// than a status. If there is no such job, the error is [mapper.ErrNoSuchJob].
func Look(ctx context.Context, e *mapper.Engine, id string) (*mapper.Status, *Picture, error) {
	ctx = store.Sharing(ctx)
	s, err := e.Job(id).Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := read(ctx, store.New(e.Client()).Asked(), id, bridge.QueueOf(s), false)
	if err != nil {
		return nil, nil, fmt.Errorf("picture: %w", err)
	}
	return s, p, nil
}

// Glance returns the status of an engine's job, and a picture of the records that this status has
// read. It costs less than [Look], because it makes no other calls. So if the job is sampled, the
// picture has only a few of its failures, and if the status is read from the job's record alone, it
// has no ranges. If there is no such job, the error is [mapper.ErrNoSuchJob].
func Glance(ctx context.Context, e *mapper.Engine, id string) (*mapper.Status, *Picture, error) {
	ctx = store.Sharing(ctx)
	s, err := e.Job(id).Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := read(ctx, store.New(e.Client()).Asked(), id, bridge.QueueOf(s), true)
	if err != nil {
		return nil, nil, fmt.Errorf("picture: %w", err)
	}
	return s, p, nil
}

// read reads the picture of a job. The parameter queue is what the queue says about the job's
// tasks; zero: unknown. If brief is set, it reads only what [Glance] needs.
func read(ctx context.Context, st store.Store, id string, queue estimate.Queue, brief bool) (*Picture, error) {
	job, err := st.LoadedJob(ctx, record.Ref{ID: id})
	if err != nil {
		return nil, err
	}
	p := newPicture(job, time.Now())
	if brief && len(job.Totals) > 0 {
		return p, p.about(job, nil, 1)
	}
	found, err := samplesOf(ctx, st, job, brief)
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", id, err)
	}
	p.Estimated = found.some
	if err := p.about(job, found.failed.all, found.failed.scale); err != nil {
		return nil, fmt.Errorf("job %s: %w", id, err)
	}
	if p.Gone {
		return p, nil
	}
	p.add(found.done)
	p.add(found.failed)
	first, atWork := len(p.Ranges), found.look(job, queue, p.Until).AtWork()
	p.add(found.open)
	for i, r := range found.open.all {
		if atWork(r) {
			p.Ranges[first+i].State = Running
		}
	}
	p.sort(slices.Concat(found.done.all, found.failed.all, found.open.all))
	p.markSlow()
	return p, nil
}

// A sample holds some records of a job's ranges. Each of them stands for several ranges.
type sample struct {
	all   []*record.Range
	scale float64
}

// samples are samples of a job's range records: of the done ranges, of the failed ones and of the
// pending ones.
type samples struct {
	done, failed, open sample
	some               bool // whether some of the job's records are missing in the samples
}

// look returns what the samples and the queue say about a job at the time now.
func (s *samples) look(job *record.Job, queue estimate.Queue, now time.Time) estimate.Look {
	l := estimate.Look{Job: job, Queue: queue, Now: now}
	l.Totals.Pending = int64(math.Ceil(float64(len(s.open.all)) * s.open.scale))
	l.Totals.Sample = record.NewSample()
	for _, r := range slices.Concat(s.done.all, s.failed.all, s.open.all) {
		l.Totals.Sample.Add(r)
	}
	l.Totals.Sample.Scale, l.Totals.Sample.LeftScale = s.done.scale, s.open.scale
	return l
}

// samplesOf reads a job's range records, or samples of them. If brief is set, it makes no separate
// sample of failures.
func samplesOf(ctx context.Context, st store.Store, job *record.Job, brief bool) (p samples, err error) {
	all, scale, err := st.Sample(ctx, job.Ref(), "", store.SampleSize)
	if err != nil {
		return p, err
	}
	p.done = sample{marked(all, func(r *record.Range) bool { return r.State == record.Done && r.Failed == "" }), scale}
	p.failed = sample{marked(all, func(r *record.Range) bool { return r.Failed != "" }), scale}
	p.open = sample{marked(all, func(r *record.Range) bool { return r.State == record.Pending }), scale}
	if p.some = scale != 1; !p.some {
		return p, nil
	}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		p.open.all, p.open.scale, err = st.Sample(gctx, job.Ref(), "open", store.SampleSize)
		return err
	})
	if !brief {
		group.Go(func() (err error) {
			p.failed.all, p.failed.scale, err = st.Sample(gctx, job.Ref(), "failed", store.SampleSize)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return p, err
	}
	if len(job.Totals) > 0 { // the job's record has the totals of all records
		p.done.scale, p.failed.scale, err = exactly(job, p.done.all, p.failed.all)
		return p, err
	}
	c, err := st.Census(ctx, job.Ref()) // count the records, as a status does
	if err != nil || c == nil {
		return p, err
	}
	p.done.scale, p.failed.scale, p.open.scale = each(c.Done(), p.done.all), each(c.Failed, p.failed.all),
		each(c.Open, p.open.all)
	return p, nil
}

// newPicture returns a job's picture that has no ranges yet.
func newPicture(job *record.Job, now time.Time) *Picture {
	p := &Picture{State: mapper.State(job.State), Undo: job.Undo, Begun: job.Created, Until: now,
		Gone: job.Cleaned || job.Cleaning != ""}
	if p.Ended = job.Over(); p.Ended {
		p.Until = job.Ended
	}
	return p
}

// each returns for how many ranges each sampled one stands, if the job has n ranges.
func each(n int64, sampled []*record.Range) float64 {
	return float64(n) / float64(max(1, len(sampled)))
}

// exactly returns for how many ranges each done one and each failed one of a sample stands, by the
// totals in the job's record.
func exactly(job *record.Job, done, failed []*record.Range) (doneScale, failedScale float64, err error) {
	sum, err := job.RecordedTotals()
	processed := int64(0)
	for _, r := range done {
		processed += r.Processed
	}
	return float64(sum.Processed) / float64(max(1, processed)), each(sum.Failures, failed), err
}

// marked returns the records for which the function in the parameter is returns true.
func marked(all []*record.Range, is func(*record.Range) bool) (some []*record.Range) {
	for _, r := range all {
		if is(r) {
			some = append(some, r)
		}
	}
	return some
}

func (p *Picture) add(some sample) {
	for _, r := range some.all {
		p.Ranges = append(p.Ranges, rangeOf(r, some.scale))
	}
}

// sort sorts the ranges by the start in their records. A page and one of its entities, which was
// retried alone, may start at the same place. Then the page comes first.
func (p *Picture) sort(records []*record.Range) {
	at := make(map[string]*record.Range, len(records))
	for _, r := range records {
		at[r.ID] = r
	}
	slices.SortStableFunc(p.Ranges, func(a, b Range) int {
		x, y := at[a.ID], at[b.ID]
		if x.Start == nil || y.Start == nil {
			return keyspace.Present(x.Start != nil) - keyspace.Present(y.Start != nil)
		}
		return cmp.Or(keyspace.Compare(x.Start, y.Start), keyspace.Present(x.Alone)-keyspace.Present(y.Alone),
			cmp.Compare(a.ID, b.ID))
	})
}

// about sets the picture's Causes and History. The parameter failed has the sampled failures, and
// scale is how many failures each of them stands for.
func (p *Picture) about(job *record.Job, failed []*record.Range, scale float64) error {
	if len(failed) > 0 {
		for _, c := range record.Causes(failed, int64(float64(len(failed))*scale+0.5)) {
			if c.Example.Start == nil {
				return fmt.Errorf("the range %s has failed, and its record has no entity", c.Example.ID)
			}
			example := mapper.Failure{Key: c.Example.Start.Key, Path: names.Key(c.Example.Start.Key),
				Error: c.Example.Error, Attempts: int(c.Example.Refusals), Time: c.Example.Done}
			p.Causes = append(p.Causes, mapper.FailureCause{Text: c.Text, Digest: fault.Digest(c.Text), Count: c.Count,
				Estimated: c.Estimated,
				Example:   example})
		}
	}
	acts, err := job.History.Acts()
	for _, a := range acts {
		p.History = append(p.History, mapper.HistoryEntry{Time: a.At, Action: a.What, By: a.By, Reason: a.Why,
			State: mapper.State(a.To)})
	}
	return err
}

// A Detail holds everything that the record of one range contains: see [RangeOf].
type Detail struct {
	Range
	Mapper string `json:"mapper"` // the job's mapper, as in mapper.Status
	// Namespace is the namespace of the range's entities, if the query has several kinds or
	// namespaces.
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind,omitempty"` // the kind of the range's entities, if Namespace is set

	PageSize int64 `json:"page_size"` // how many entities the range's page may have
	Full     bool  `json:"full"`      // whether the page ended at a limit of count, bytes or time
	// NotBefore is the earliest time at which the range's task may start. The zero time means at
	// once.
	NotBefore time.Time `json:"not_before,omitzero"`
	// Begun is when the range's current delivery arrived, which may have died since. It is zero if
	// there is none.
	Begun time.Time `json:"begun,omitzero"`
	// Exclusive says that the range's task must run exclusively: its process must do nothing else.
	Exclusive bool `json:"exclusive,omitempty"`
	// Deaths is the number of the range's deliveries that seem to have died with their process.
	Deaths     int   `json:"deaths"`
	Generation int64 `json:"generation,omitempty"` // a number in the name of the range's task

	Counters json.RawMessage `json:"counters,omitempty"` // the function's counters for the range's page
	// Children are up to 100 of the ranges that the range's task has cut off.
	Children []Child `json:"children,omitempty"`
	More     int64   `json:"more,omitempty"` // number of further children
}

// A Child is a range that was cut off the range of a [Detail].
type Child struct {
	ID    string `json:"id"`
	State State  `json:"state,omitempty"` // the state of the child; empty: its record does not exist any more
}

// manyChildren is the largest number of children that a Detail lists.
const manyChildren = 100

// RangeOf returns the details of a job's range, by the range's ID, in up to three calls. If there
// is no such range, the error is [ErrNoSuchRange]; if there is no such job, it is
// [mapper.ErrNoSuchJob].
func RangeOf(ctx context.Context, client *datastore.Client, job, id string) (*Detail, error) {
	d, err := detail(ctx, store.New(client).Asked(), client, job, id)
	if err != nil {
		return nil, fmt.Errorf("picture: %w", err)
	}
	return d, nil
}

func detail(ctx context.Context, st store.Store, client *datastore.Client, id, rangeID string) (*Detail, error) {
	if !record.ValidRangeID(rangeID) {
		return nil, fmt.Errorf("%w: %.80q", ErrNoSuchRange, rangeID)
	}
	job, err := st.LoadJob(ctx, record.Ref{ID: id})
	if err != nil {
		return nil, err
	}
	r, err := st.LoadRange(ctx, job.Ref(), rangeID)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil, fmt.Errorf("%w: %s", ErrNoSuchRange, rangeID)
	}
	if err != nil {
		return nil, err
	}
	d := &Detail{
		Range: rangeOf(r, 1), Mapper: job.Mapper, Namespace: r.Namespace, Kind: r.Kind,
		PageSize: int64(r.PageLimit()), Full: r.Full,
		NotBefore: r.NotBefore, Begun: r.BegunAt,
		Exclusive: r.Solo, Deaths: len(r.Deaths), Generation: r.Generation, Counters: r.Counters,
		More: max(0, r.Children-manyChildren),
	}
	if (estimate.Look{Job: job, Now: time.Now()}).AtWork()(r) {
		d.State = Running
	}
	return d, d.children(ctx, client, r)
}

// children reads the records of the children of r, and adds them to the detail.
func (d *Detail) children(ctx context.Context, client *datastore.Client, r *record.Range) error {
	n := min(r.Children, manyChildren)
	if n == 0 {
		return nil
	}
	var keys []*datastore.Key
	for i := range n {
		d.Children = append(d.Children, Child{ID: record.RangeID(r.ID, i)})
		keys = append(keys, record.RangeKey(r.Ref(), d.Children[i].ID))
	}
	found, dst := make([]record.Range, n), make([]any, n)
	for i := range found {
		dst[i] = &found[i]
	}
	missing, err := source.Lookup(func(keys []*datastore.Key, dst any) error {
		return client.GetMulti(ctx, keys, dst)
	}, keys, dst)
	if err != nil {
		return err
	}
	for i := range found {
		if !missing[i] {
			d.Children[i].State = rangeOf(&found[i], 1).State
		}
	}
	return nil
}
