package planner

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Pacer limits the size of pages by the rate limits of jobs.
type Pacer struct {
	Paces *pace.Book[record.Ref] // how fast the jobs of this process go
	Wait  time.Duration          // the longest that a page may wait for its job's rate
}

// Size returns how many entities a page may have at the job's rate: at most size.
func (pc Pacer) Size(job *record.Job, mode function.Mode, size int) (int, error) {
	rate, err := pageLimit(job)
	if err != nil {
		return size, err
	}
	if (rate.WritesLimited() || len(job.Budget) > 0) && mode == function.Update &&
		pc.Paces.Get(job.Ref()).Entities == 0 {
		size = min(size, pace.FirstPaced)
	}
	if rate == (pace.Limit{}) {
		return size, nil
	}
	return pc.at(job, mode, rate, size), nil
}

// pageLimit returns the part of the job's rate that limits the size of pages.
func pageLimit(job *record.Job) (pace.Limit, error) {
	rate, err := job.RateLimit()
	return rate.OfPages(), err
}

// at returns how many entities a page may have at a rate.
func (pc Pacer) at(job *record.Job, mode function.Mode, rate pace.Limit, size int) int {
	since := time.Since(job.RampBegan())
	queue := pc.Paces.Meter(job.Ref()).Queue()
	return rate.Page(size, pc.Paces.Writes(job.Ref(), mode.Writes()), since, queue, pc.Wait)
}

// toCut returns the page size for which a range is cut. At a low rate pages are small, so that even
// few entities are spread over all workers.
func (pc Pacer) toCut(job *record.Job, r *record.Range, mode function.Mode) int64 {
	if rate, err := pageLimit(job); err == nil && rate != (pace.Limit{}) {
		return min(r.PageSize, int64(pc.at(job, mode, rate, int(job.PageSize))))
	}
	return r.PageSize
}
