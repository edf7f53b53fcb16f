package mapper

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Rate is how fast a job goes at most. The zero value is as fast as it can.
//
// Each of the job's StartOptions.Workers tasks, or of as many as the queue delivers at once
// if those are more, keeps to its share of it by itself: it waits before a page for as long
// as the page's entities take at that rate. So nothing is counted in a record that all
// would write, and if fewer tasks run the job is slower than its rate. If more of them run,
// because the caller of Start may not know how many the queue delivers at once, or because
// the queue was changed since, it is faster. Pages are small enough to be waited for in 20
// seconds; with few workers they are larger and cost fewer writes for records. The rate
// holds on average over a minute.
type Rate struct {
	// Entities is how many entities are processed in a second. 0 is no limit.
	Entities float64 `json:"entities,omitempty"`

	// Writes is how many writes are made in a second: puts and deletes of the function,
	// and those of the job's own records. 0 is no limit.
	Writes float64 `json:"writes,omitempty"`

	// Ramp has the job begin with 500 entities and 500 writes a second, and allows half
	// as many again every five minutes: from its start, or when it was last resumed, or
	// when [Job.SetRate] turned the ramp on. Datastore asks that of traffic to a kind that
	// is new, on its best practices page. Entities and Writes hold besides.
	Ramp bool `json:"ramp,omitempty"`
}

// The ramp of Datastore's best practices: "500/50/5".
const (
	rampFirst  = 500
	rampFactor = 1.5
	rampEvery  = 5 * time.Minute
)

// rateWait is how long a page waits at most, on average; a short deadline makes it shorter.
const rateWait = 20 * time.Second

// waitWithin returns rateWait for a queue's deadline: what is left of that is for the page.
func waitWithin(deadline time.Duration) time.Duration { return min(rateWait, deadline/20) }

// at returns what the rate allows so long after the ramp's beginning.
func (r Rate) at(since time.Duration) (entities, writes float64) {
	entities, writes = math.Inf(1), math.Inf(1)
	if r.Ramp {
		entities = rampFirst * math.Pow(rampFactor, math.Floor(float64(max(0, since))/float64(rampEvery)))
		writes = entities
	}
	if r.Entities > 0 {
		entities = min(entities, r.Entities)
	}
	if r.Writes > 0 {
		writes = min(writes, r.Writes)
	}
	return entities, writes
}

// firstPaced is the most entities that a page has if writes are limited and a process does not
// know yet how many of them the function makes for an entity.
const firstPaced = 10

func (r Rate) writesLimited() bool { return r.Writes > 0 || r.Ramp }

// recordWrites is how many writes of records a page takes.
const recordWrites = 2

// spacing returns how long one of some workers may take for a page of n entities with so
// many writes each.
func (r Rate) spacing(n int, each float64, workers int64, since time.Duration) time.Duration {
	entities, writes := r.at(since)
	seconds := max(float64(n)/entities, (float64(n)*each+recordWrites)/writes) * float64(workers)
	return time.Duration(min(seconds, time.Hour.Seconds()) * float64(time.Second))
}

// page returns how many entities a page may have that waits for up to most.
func (r Rate) page(size int, each float64, workers int64, since, most time.Duration) int {
	entities, writes := r.at(since)
	share := most.Seconds() / float64(workers)
	fit := entities * share
	if !math.IsInf(writes, 1) && each > 0 {
		fit = min(fit, (writes*share-recordWrites)/each)
	}
	return int(max(1, min(fit, float64(size))))
}

func (r Rate) validate(name string, workers int64, deadline time.Duration) error {
	wait := waitWithin(deadline)
	slowest := float64(workers) / wait.Seconds()
	switch {
	case !(r.Entities >= 0) || math.IsInf(r.Entities, 1):
		return fmt.Errorf("%s.Entities has to be at least 0, it is %v", name, r.Entities)
	case !(r.Writes >= 0) || math.IsInf(r.Writes, 1):
		return fmt.Errorf("%s.Writes has to be at least 0, it is %v", name, r.Writes)
	case r.Entities > 0 && r.Entities < slowest:
		return fmt.Errorf("%s.Entities has to be at least %.3g a second for %d workers, as each waits for up to %v; it is %v: give the job and its queue fewer workers", name, slowest, workers, wait, r.Entities)
	case r.Ramp && rampFirst < (1+recordWrites)*slowest:
		return fmt.Errorf("%s.Ramp begins with %d a second, which is too little for %d workers, as each waits for up to %v: it has to be at least %.3g; give the job and its queue fewer workers", name, rampFirst, workers, wait, (1+recordWrites)*slowest)
	case r.Writes > 0 && r.Writes < (1+recordWrites)*slowest:
		return fmt.Errorf("%s.Writes has to be at least %.3g a second for %d workers, as each waits for up to %v; it is %v: give the job and its queue fewer workers", name, (1+recordWrites)*slowest, workers, wait, r.Writes)
	}
	return nil
}

// rampFrom returns when the ramp began. A job of an older build has none until it is resumed.
func (j *jobRecord) rampFrom() time.Time {
	if j.RampFrom.IsZero() {
		return j.Created
	}
	return j.RampFrom
}

// atOnce returns how many of the job's tasks may run at once, as far as that is known.
func (j *jobRecord) atOnce() int64 { return max(j.Workers, j.Concurrent) }

func (j *jobRecord) rate() (r Rate, err error) {
	if len(j.Rate) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(j.Rate, &r); err != nil {
		return r, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return r, nil
}

// SetRate changes how fast the job goes. Pages that begin from a second later on keep to
// it. If it turns the ramp on, that begins now. A rate that is no number, or too low for the
// job's workers, is [ErrArguments], and a job that has ended, but for a failed one, [ErrState].
func (j *Job) SetRate(ctx context.Context, rate Rate) error {
	_, err := j.engine.alter(ctx, j.ref(), func(r *jobRecord) error {
		if err := rate.validate("Rate", r.atOnce(), j.engine.queue.Deadline()); err != nil {
			return fmt.Errorf("%w: %w", ErrArguments, err)
		}
		if State(r.State).Ended() && State(r.State) != Failed { // that can be resumed
			return fmt.Errorf("%w: it is %q", ErrState, r.State)
		}
		if before, err := r.rate(); rate.Ramp && (err != nil || !before.Ramp) {
			r.RampFrom = time.Now().UTC().Truncate(time.Microsecond)
		}
		var err error
		r.Rate, err = json.Marshal(rate)
		return err
	})
	if err != nil {
		return fmt.Errorf("mapper: set the rate of %s: %w", j.ID, err)
	}
	return nil
}

// pacedSize returns how many entities a page may have at the job's rate.
func (w *work) pacedSize(size int) (int, error) {
	rate, err := w.job.rate()
	if err != nil || rate == (Rate{}) {
		return size, err
	}
	if rate.writesLimited() && w.mode == update && w.engine.paces.get(w.job.ref()).entities == 0 {
		size = min(size, firstPaced)
	}
	return w.pacedAt(rate, size), nil
}

// pacedAt returns how many entities a page may have at a rate.
func (w *work) pacedAt(rate Rate, size int) int {
	since := time.Since(w.job.rampFrom())
	return rate.page(size, w.engine.paces.writes(w.job.ref(), w.mode.writes()), w.job.atOnce(), since, waitWithin(w.engine.queue.Deadline()))
}

// pageToCut returns the size of the pages that ranges are cut for, now and if the function is as
// fast as the job's first pages expect. At a low rate they are small, and each task has its share
// of the rate: so that few entities are still spread over all.
func (w *work) pageToCut() (now, usual int64) {
	now, usual = w.record.PageSize, w.job.PageSize
	if rate, err := w.job.rate(); err == nil && rate != (Rate{}) {
		most := int64(w.pacedAt(rate, int(w.job.PageSize)))
		now, usual = min(now, most), min(usual, most)
	}
	return now, usual
}

// keepRate waits until a page of n entities may begin: for the first one of a delivery, a
// random time, so that deliveries which begin together do not go on together. If the page
// has become much too large for the rate meanwhile, the error is errChanged. A page for which
// others wait is none of many, and does not wait itself.
func (w *work) keepRate(ctx context.Context, n int) error {
	if len(w.job.Rate) == 0 || w.record.Solo {
		return nil
	}
	from, factor := w.paced, 1.0
	if from.IsZero() {
		from, factor = time.Now(), 0.5+rand.Float64()
	}
	for {
		job, err := w.engine.recentJob(ctx, w.job.ref())
		if err != nil {
			return err
		}
		if State(job.State) != Running {
			return errStopped
		}
		rate, err := job.rate()
		if err != nil {
			return err
		}
		spacing := time.Duration(0)
		if rate != (Rate{}) {
			each, since := w.engine.paces.writes(w.job.ref(), w.mode.writes()), time.Since(job.rampFrom())
			spacing = rate.spacing(n, each, job.atOnce(), since)
			if n > 2*rate.page(n, each, job.atOnce(), since, waitWithin(w.engine.queue.Deadline())) {
				changed := *w.job
				changed.Rate, changed.RampFrom = job.Rate, job.RampFrom
				w.job, w.paced = &changed, from
				return errChanged
			}
		}
		wait := time.Until(from.Add(time.Duration(float64(spacing) * factor)))
		if wait <= 0 {
			w.paced = time.Now()
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(wait, recentFor)): // the rate may change meanwhile
		}
	}
}
