package undo

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// A deletion leaves no version. So if an entity is not there, only its past tells whether somebody
// put and deleted it again after the page. An undo looks at two times: the end of the job, and the
// middle between that and now. It looks up all such entities of a page together.

// moments returns the times at which lookBetween looks at the past, between a commit and now.
func moments(ctx context.Context, u past, c commit) ([]time.Time, error) {
	job, err := u.load(ctx)
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
		// An entity that was there at that time was there at one of these minutes, too, or only for
		// seconds.
		minute := at.Truncate(time.Minute)
		looks = append(looks, minute, minute.Add(time.Minute))
	}
	return looks, nil
}

// lookBetween marks entities as changed that others have put and deleted again since the commit c.
// The commit has deleted such an entity, and it does not exist now, but it existed at one of the
// moments in between.
func (u undoer) lookBetween(ctx context.Context, c commit, all []*entity) error {
	absent := make(map[string]*entity)
	var keys []*datastore.Key
	for _, e := range all {
		if e.deleted && !e.changed { // so it is not there now
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
		case fault.IsFatal(err): // no longer kept, or still in the future by the database's clock
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
