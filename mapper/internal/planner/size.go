package planner

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// pageSize returns the largest number of entities for the next page: size, or fewer if the job's
// rate is low.
func (p *Planner) pageSize(size int) (int, error) {
	rate, err := p.job.RateLimit()
	if err != nil {
		return size, err
	}
	rate = rate.OfPages()
	if (rate.WritesLimited() || len(p.job.Budget) > 0) && p.Mode == function.Update &&
		p.Paces.Get(p.job.Ref()).Entities == 0 {
		size = min(size, pace.FirstPaced)
	}
	return p.atRate(rate, size), nil
}

// pageToCut returns the number of entities in a page at the job's rate, to decide where to cut. At
// a low rate pages are small, so that even a few entities are divided among all workers.
func (p *Planner) pageToCut() int64 {
	rate, err := p.job.RateLimit()
	if rate = rate.OfPages(); err != nil || rate == (pace.Limit{}) {
		return p.record.PageSize
	}
	return min(p.record.PageSize, int64(p.atRate(rate, int(p.job.PageSize))))
}

// atRate returns the largest number of entities for a page at the given rate, but at most size.
func (p *Planner) atRate(rate pace.Limit, size int) int {
	if rate == (pace.Limit{}) {
		return size
	}
	job := p.job.Ref()
	return rate.Page(size, p.Paces.Writes(job, p.Mode.Writes()), time.Since(p.job.RampBegan()),
		p.Paces.Meter(job).Queue(), p.Wait)
}
