package undo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// minute returns the last whole minute at which nothing of it was there: behind an hour the database serves no other times.
func (c commit) minute() time.Time { return c.before().Truncate(time.Minute) }

// exactly is for how long any microsecond can be read.
const exactly = time.Hour - time.Minute

// undoByMinute decides what becomes of all that a commit has written, from what was there a whole minute before it: what was left alone for longer than that. The rest is listed.
func (u undoer) undoByMinute(ctx context.Context, o *outcome, r *record.Range, c commit) ([]*entity, error) {
	w, minute := c.wrote, c.minute()
	own, err := u.own(ctx, r, c, minute)
	if err != nil {
		return nil, err
	}
	if missing := w.Written - int64(len(own)); missing > 0 {
		o.leave(nil, missing, fmt.Sprintf("%d entities of the page were put, or came into the query, within the minute before it, and more than an hour ago only whole minutes are kept", missing))
	}
	const why = "what it was just before is not kept: it may have been changed within the minute before, and more than an hour ago only whole minutes are kept"
	var keys []*datastore.Key
	for _, key := range own {
		if w.Settled.After(minute) || w.Fresh.Has(key) {
			o.leave(key, 1, why)
		} else {
			keys = append(keys, key)
		}
	}
	for _, key := range w.Others {
		o.leave(key, 1, why)
	}
	before, err := u.lookup(ctx, append(slices.Clip(keys), c.record), minute)
	if err != nil {
		return nil, err
	}
	all, err := u.look(ctx, o, keys, before, c, func(key *datastore.Key) (*pb.EntityResult, error) {
		if w.Gone.Has(key) {
			return nil, nil
		}
		return &pb.EntityResult{Version: c.version}, nil
	})
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		first, err := past{u}.beforeJob(ctx, timeOf(e.before))
		switch {
		case err != nil:
			return nil, err
		case e.changed && same(e.before, e.now):
			e.passed = true
		case e.changed && e.now == nil:
			e.why = whyDeleted
		case e.changed:
			e.why = whyChanged
		case !first: // another page of the job may have
			e.why = whyUnkept
		}
	}
	return all, nil
}
