package undo

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// A deletion leaves no version. So if an entity does not exist, only its past shows whether another
// client put and deleted it again after the page. An undo looks at the past at two times: the end
// of the job, and the middle between that and now. For each time, it looks up all such entities of
// a page together.

// moments returns the times after a commit at which lookBetween looks at the past.
func moments(ctx context.Context, u past, c commit) ([]time.Time, error) {
	job, _, err := u.load(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	since := c.at
	var all []time.Time
	if job.Ended.After(since) && job.Ended.Before(now) {
		since = job.Ended
		all = append(all, since)
	}
	all = append(all, since.Add(now.Sub(since)/2))
	var looks []time.Time
	for _, at := range all {
		if now.Sub(at) <= exactly {
			looks = append(looks, at.Truncate(time.Microsecond))
			continue
		}
		// At this age, only whole minutes can be read. An entity that existed at that time also
		// existed at one of these two minutes, or for less than a minute.
		minute := at.Truncate(time.Minute)
		looks = append(looks, minute, minute.Add(time.Minute))
	}
	return looks, nil
}

// lookBetween looks at entities that the commit c deleted and that do not exist now. If one existed
// at one of the moments, other clients have put and deleted it since the commit. lookBetween then
// sets its field changed to true.
func (u undoer) lookBetween(ctx context.Context, c commit, all []*entity) error {
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
	looks, err := moments(ctx, past{u}, c)
	if err != nil {
		return err
	}
	for _, at := range looks {
		if !at.After(c.at) {
			continue
		}
		found, err := u.lookup(ctx, keys, at)
		switch {
		case fault.IsFatal(err): // the database no longer keeps this past, or by its clock this is the future
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
