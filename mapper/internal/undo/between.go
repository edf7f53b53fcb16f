package undo

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A deletion leaves no version. So if an entity does not exist, only its past shows whether another
// client put and deleted it again after the page. An undo looks at the past at two times: the end
// of the job, and the middle between that and now. For each time, it looks up all such entities of
// a page together. All times are the database's.

// moments returns the times after a commit at which lookBetween looks at the past.
func moments(ctx context.Context, u past, c commit, now time.Time) ([]time.Time, error) {
	since, err := u.ended(ctx, now)
	if err != nil {
		return nil, err
	}
	if since.Before(c.at) {
		since = c.at
	}
	var looks []time.Time
	for _, at := range []time.Time{since, since.Add(now.Sub(since) / 2)} {
		if now.Sub(at) <= exactly {
			looks = append(looks, at.Truncate(time.Microsecond))
			continue
		}
		// At this age, only whole minutes can be read. An entity that existed at that time also
		// existed at one of these two minutes, or for less than a minute.
		minute := at.Truncate(time.Minute)
		looks = append(looks, minute, minute.Add(time.Minute))
	}
	return slices.DeleteFunc(looks, func(at time.Time) bool { return !at.After(c.at) }), nil
}

// ended returns a time at most a second before the job's last end, by the database's clock, or the
// whole minute before if only these can be read. The job's record has the end by the clock of a
// process. So ended first tries this time, and then does a binary search. If the job has not ended,
// the result is zero.
func (u past) ended(ctx context.Context, now time.Time) (time.Time, error) {
	job, begun, err := u.load(ctx)
	if err != nil || job.Ended.IsZero() {
		return time.Time{}, err
	}
	h := u.history
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return time.Time{}, err
	}
	defer h.turn.Release(1)
	if !h.ended.IsZero() {
		return h.ended, nil
	}
	// The job's last end is after the first time, and not after the second one. A job that has
	// ended runs again in a new generation. If no end is stored, it is a time before 1970.
	from, to := begun, now
	for tries := 0; ; tries++ {
		unit := time.Second
		if now.Sub(from) > exactly {
			unit = time.Minute
		}
		if to.Sub(from) <= unit {
			break
		}
		at := from.Add(to.Sub(from) / 2)
		if guess := job.Ended.Add(time.Duration(tries) * unit); tries < 2 && guess.After(from) && guess.Before(to) {
			at = guess
		}
		if at = at.Truncate(time.Microsecond); now.Sub(at) > exactly {
			if at = at.Truncate(time.Minute); !at.After(from) {
				at = at.Add(time.Minute)
			}
		}
		is, err := u.at(ctx, record.JobKey(job.ID), at)
		switch {
		case err == nil && endedAt(is).After(time.Unix(0, 0)) && generationOf(is) == job.Generation:
			to = at
		case err == nil || fault.IsFatal(err): // a past that is not kept is taken to be before the end
			from = at
		default:
			return time.Time{}, err
		}
	}
	h.ended = from
	return from, nil
}

// lookBetween looks at entities that the commit c deleted and that do not exist now. If one existed
// at one of the moments, other clients have put and deleted it since the commit. lookBetween then
// sets its field changed to true.
// The parameter now is when the states of now were read.
func (u undoer) lookBetween(ctx context.Context, c commit, all []*entity, now time.Time) error {
	absent := make(map[string]*entity)
	var keys []*datastore.Key
	for _, e := range all {
		if e.deleted && !e.changed { // the entity does not exist now
			absent[e.key.Encode()] = e
			keys = append(keys, e.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	looks, err := moments(ctx, past{u}, c, now)
	if err != nil {
		return err
	}
	for _, at := range looks {
		found, err := u.lookup(ctx, keys, at)
		switch {
		case fault.IsFatal(err): // the database no longer keeps this past
			continue
		case err != nil:
			return err
		}
		for _, key := range keys {
			if is := found.Of(key); is != nil {
				e := absent[key.Encode()]
				e.changed, e.shown = true, is
			}
		}
	}
	return nil
}
