package forecast

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/splitsim"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/tasks"
)

// A Job is what is known of a job before it starts. What the fields mean is said at
// mapper.PlanOptions.
type Job struct {
	Query     query.Query
	PageSize  int64
	PageTime  time.Duration
	Workers   int64
	AtOnce    int64 // how many tasks may run at once
	Rate      pace.Limit
	Deadline  time.Duration // of the queue
	Update    bool
	Writes    float64
	PerEntity time.Duration
	Prices    billing.Prices
}

// An Estimate is what is expected of a job: mapper.Estimate has the meaning of its fields.
type Estimate struct {
	Entities          int64
	Exact, LowerBound bool

	Workers      int
	Pages, Tasks int64
	Duration     time.Duration

	Usage   billing.Usage
	Dollars float64
	Spent   billing.Usage
}

// Of returns what is expected of a job, whose entities a source has.
func Of(ctx context.Context, src source.Source, j *Job) (*Estimate, error) {
	page := max(1, min(j.PageSize, int64(j.PageTime/j.PerEntity)))
	if j.Rate != (pace.Limit{}) {
		others := pace.Queue{Pages: float64(max(1, j.AtOnce) - 1)}
		page = int64(j.Rate.Page(int(page), j.Writes, 0, others, pace.WaitWithin(j.Deadline)))
	}
	est := &Estimate{Workers: int(j.Workers)}
	least, err := est.size(ctx, src, j, page)
	if err != nil {
		return nil, err
	}
	return est, est.expect(ctx, j, page, least)
}

// mostPlanned is up to how many entities are counted.
const mostPlanned = 1_000_000

// mostSpaces is in up to how many kinds of namespaces entities are counted.
const mostSpaces = 1000

// size finds out how many entities a query has: in each of its spaces, but no more than a plan can
// wait for. It returns how many pages that takes at least, as none has entities of two spaces.
func (est *Estimate) size(ctx context.Context, src source.Source, j *Job, page int64) (least int64, err error) {
	var mu sync.Mutex
	est.Exact = true
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	next := src.Spaces(gctx, j.Query, nil, nil)
	for n := 0; ; n++ {
		s, ok, err := next()
		more := err == nil && ok && n == mostSpaces
		if err != nil || !ok || more {
			err = cmp.Or(group.Wait(), err)
			est.Exact, est.LowerBound = est.Exact && !more, est.LowerBound || more
			return least, err
		}
		group.Go(func() error {
			part, err := sizeIn(gctx, src, j.Query.In(s), j)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			est.Entities += part.Entities
			least += (part.Entities + page - 1) / page
			est.Exact, est.LowerBound = est.Exact && part.Exact, est.LowerBound || part.LowerBound
			est.Spent.Reads += part.Spent.Reads
			est.Spent.SmallOps += part.Spent.SmallOps
			return nil
		})
	}
}

// sizeIn finds out how many entities a query over one space has.
func sizeIn(ctx context.Context, src source.Source, q query.Query, j *Job) (est Estimate, err error) {
	look := survey.Survey{Source: src, Query: q, Page: j.PageSize, Refine: true, Used: &est.Spent}
	n, known := look.Count(ctx, nil, mostPlanned)
	if known && n < mostPlanned {
		est.Entities, est.Exact = n, q.Share.All()
		return est, nil
	}
	found, err := look.Run(ctx, split.Strategy{}, j.Workers)
	if est.Entities = max(n, found.Estimate); err == nil && est.Entities == 0 {
		err = errors.New("the database neither counts entities nor has samples of them, so their number is not known")
	}
	est.LowerBound = known && (found.Estimate <= n || !q.Plain() && est.Entities >= split.MostCounted)
	return est, err
}

// mostModelled is how many pages are modelled one by one: of more, a part.
const mostModelled = 1_000_000

// expect fills in what follows from the number of entities, for pages of a size, and at least so
// many of them.
func (est *Estimate) expect(ctx context.Context, j *Job, page, least int64) error {
	times := splitsim.UsualTimes(tasks.Parallel)
	times.Page += time.Duration(page) * j.PerEntity
	part := 1 + est.Entities/page/mostModelled
	m, err := splitsim.Run(ctx, splitsim.VirtualKind{N: est.Entities / part, Key: splitsim.SequentialKey}, j.Workers,
		page, times)
	if err != nil {
		return err
	}
	m.Pages, m.Tasks = m.Pages*part, m.Tasks*part
	if j.Query.Many() { // the model knows one space only
		m.Pages, m.Tasks = max(m.Pages, least), max(m.Tasks, min(j.Workers, least))
	}
	est.Pages, est.Tasks = m.Pages, m.Tasks
	est.Duration = m.Takes(j.Workers)
	if n := float64(est.Entities); j.Rate != (pace.Limit{}) {
		est.Duration = max(est.Duration, j.Rate.Takes(n, n*j.Writes+float64(pace.RecordWrites*m.Pages)))
	}
	est.Usage = billing.Usage{
		// of the entities; of the records, and the queries for keys; of jobs
		Reads:    est.Entities + 3*m.Pages + m.Tasks,
		SmallOps: j.Query.Share.Keys(est.Entities),
		Writes:   int64(float64(est.Entities)*j.Writes) + pace.RecordWrites*m.Pages,
		TaskOps:  2 * (m.Tasks + 1), // the last one ends the job
	}
	if j.Query.Unread(j.Update) {
		est.Usage.Reads -= est.Entities
	}
	est.Dollars = j.Prices.Dollars(est.Usage)
	return nil
}
