package estimate

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
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
	Parallel  int // how many tasks are enqueued at once
}

// A Size is how many entities a query has, as far as is found out without reading them.
type Size struct {
	Entities          int64
	Exact, LowerBound bool
	Pages             int64         // at least, as none has entities of two spaces
	Spent             billing.Usage // to find that out
}

// A Forecast is what is expected of a job: mapper.Estimate has the meaning of its fields.
type Forecast struct {
	Entities          int64
	Exact, LowerBound bool

	Workers      int
	Pages, Tasks int64
	Duration     time.Duration

	Usage   billing.Usage
	Dollars float64
	Spent   billing.Usage
}

// Page returns how many entities a page of the job has.
func (j *Job) Page() int64 {
	page := max(1, min(j.PageSize, int64(j.PageTime/j.PerEntity)))
	if j.Rate != (pace.Limit{}) {
		others := pace.Queue{Pages: float64(max(1, j.AtOnce) - 1)}
		page = int64(j.Rate.Page(int(page), j.Writes, 0, others, pace.WaitWithin(j.Deadline)))
	}
	return page
}

// ForecastOf returns what is expected of a job over a query of a size.
func ForecastOf(ctx context.Context, j *Job, size Size) (*Forecast, error) {
	est := &Forecast{Entities: size.Entities, Exact: size.Exact, LowerBound: size.LowerBound, Workers: int(j.Workers),
		Spent: size.Spent}
	return est, est.expect(ctx, j, j.Page(), size.Pages)
}

// mostModelled is how many pages are modelled one by one: of more, a part.
const mostModelled = 1_000_000

// expect fills in what follows from the number of entities, for pages of a size, and at least so
// many of them.
func (est *Forecast) expect(ctx context.Context, j *Job, page, least int64) error {
	times := UsualTimes(j.Parallel)
	times.Page += time.Duration(page) * j.PerEntity
	part := 1 + est.Entities/page/mostModelled
	m, err := Simulate(ctx, VirtualKind{N: est.Entities / part, Key: SequentialKey}, j.Workers,
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
