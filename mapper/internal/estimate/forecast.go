package estimate

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// A Job holds the facts about a job from which its forecast is made. See mapper.PlanOptions for the
// meaning of its fields.
type Job struct {
	Query     query.Query
	PageSize  int64
	PageTime  time.Duration
	Workers   int64
	AtOnce    int64 // the largest number of tasks that run at the same time
	Rate      pace.Limit
	Deadline  time.Duration // the dispatch deadline of the queue
	Update    bool
	Writes    float64
	Calls     float64 // the mean number of calls of a service for an entity
	PerEntity time.Duration
	Prices    billing.Prices
	Parallel  int // how many tasks are enqueued at the same time
}

// A Size is the number of entities that a job's query selects, as found by counts and samples.
type Size struct {
	Entities          int64
	Exact, LowerBound bool
	// Pages is the least number of pages. Each page has only one kind and namespace, so a query of
	// several needs at least one page for each.
	Pages int64
	Spent billing.Usage // the cost of the calls that found the size
}

// A Forecast holds the expected numbers, time and cost of a job. See mapper.Estimate for the
// meaning of its fields.
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

// Page returns the number of entities in a full page of the job. A page is a group of entities that
// commit together.
func (j *Job) Page() int64 {
	page := max(1, min(j.PageSize, int64(j.PageTime/j.PerEntity)))
	if j.Rate.OfPages() != (pace.Limit{}) {
		others := pace.Queue{Pages: float64(max(1, j.AtOnce) - 1)}
		page = int64(j.Rate.Page(int(page), j.Writes, 0, others, pace.WaitWithin(j.Deadline)))
	}
	return page
}

// ForecastOf returns the forecast for the job j, whose query selects size.Entities entities.
func ForecastOf(ctx context.Context, j *Job, size Size) (*Forecast, error) {
	est := &Forecast{Entities: size.Entities, Exact: size.Exact, LowerBound: size.LowerBound, Workers: int(j.Workers),
		Spent: size.Spent}
	return est, est.expect(ctx, j, j.pageOf(size.Entities), size.Pages)
}

// pageOf returns the expected number of entities in a page of a job with this number of entities.
// It is smaller than a full page if the function calls a service and the job limits these calls.
// Then the waits for calls use up the page's time, and all tasks share the rate of calls.
func (j *Job) pageOf(entities int64) int64 {
	page := j.Page()
	each := j.Rate.Takes(pace.Need{Calls: j.Calls}) // for all workers together
	if j.Rate.CallsPerSecond == 0 || float64(entities)*each.Seconds() <= j.PageTime.Seconds() {
		return page
	}
	tasks := max(1, min(j.AtOnce, entities))
	return max(1, min(page, int64(j.PageTime.Seconds()/(each.Seconds()*float64(tasks)))))
}

// mostModelled is the largest number of pages that are simulated. For a larger job, a fraction of
// its entities is simulated, and the results are multiplied.
const mostModelled = 1_000_000

// expect calculates the forecast's pages, tasks, duration and cost from est.Entities. The argument
// page is the number of entities in a full page, and least is a lower bound for the number of
// pages.
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
	if j.Query.Many() { // the model has only one kind and namespace
		m.Pages, m.Tasks = max(m.Pages, least), max(m.Tasks, min(j.Workers, least))
	}
	est.Pages, est.Tasks = m.Pages, m.Tasks
	est.Duration = m.Takes(j.Workers)
	if n := float64(est.Entities); j.Rate != (pace.Limit{}) {
		est.Duration = max(est.Duration, j.Rate.Takes(pace.Need{Entities: n,
			Writes: n*j.Writes + float64(pace.RecordWrites*m.Pages), Calls: n * j.Calls}))
	}
	est.Usage = billing.Usage{
		// The terms are one read for each entity, three for each page (records, and queries for
		// keys), and one for each task (the job's record).
		Reads:    est.Entities + 3*m.Pages + m.Tasks,
		SmallOps: j.Query.Share.Keys(est.Entities),
		Writes:   int64(float64(est.Entities)*j.Writes) + pace.RecordWrites*m.Pages,
		TaskOps:  2 * (m.Tasks + 1), // the extra task ends the job
	}
	if j.Query.Unread(j.Update) {
		est.Usage.Reads -= est.Entities
	}
	est.Dollars = j.Prices.Dollars(est.Usage)
	return nil
}
