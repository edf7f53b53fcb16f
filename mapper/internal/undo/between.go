package undo

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// A deletion leaves no version: whether an entity that is not there was put and deleted again since
// a page has deleted it, nothing tells but its past. So an undo looks at that twice, for all such
// entities of a page together: when the job ended, and between that and now.

// moments returns when to look, between a commit and now.
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
	for i, at := range all {
		unit := time.Microsecond
		if now.Sub(at) > exactly && now.Sub(c.at) > exactly {
			unit = time.Minute
		}
		all[i] = at.Truncate(unit)
	}
	return all, nil
}

// lookBetween finds those of the entities that a commit has deleted, and that are not there, that
// were there in between: they have changed.
func lookBetween(ctx context.Context, u undoer, c commit, all []*entity) error {
	absent := make(map[string]*entity)
	var keys []*datastore.Key
	for _, e := range all {
		if e.deleted && e.now == nil && !e.changed {
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
		case fault.IsFatal(err): // it is not kept, or the future by the database's clock
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
