package undo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// minute returns the last whole minute before the commit. After an hour, the database serves only
// the states of whole minutes.
func (c commit) minute() time.Time { return c.before().Truncate(time.Minute) }

// whyWhich is the reason not to restore an entity if it is unknown whether the page wrote it. This
// is so if the query found other entities at the last whole minute than the page had at the commit.
const whyWhich = "perhaps the page wrote it: others have put or deleted entities within the minute before, " +
	"and after an hour only whole minutes are kept"

// exactly is how far back the database certainly serves every microsecond of the past.
const exactly = time.Hour - time.Minute

// undoByMinute decides what happens to the entities that a commit wrote, if only the states of
// whole minutes can be read. It returns the entities to restore, whose state at the last whole
// minute before the commit is also their state just before the commit. It lists the others as not
// restored.
func (u undoer) undoByMinute(ctx context.Context, o *outcome, r *record.Range, c commit) ([]*entity, error) {
	w, minute := c.wrote, c.minute()
	own, err := u.ownOf(ctx, r, c, minute)
	if err == nil {
		err = u.readBatches(ctx, o) // what they have restored is not listed
	}
	if err != nil {
		return nil, err
	}
	own = own.withRestored(o, w, r.Keys)
	sure := own.sure(w)
	keys := known(o, w, own, minute)
	before, err := u.lookup(ctx, append(slices.Clip(keys), c.record), minute)
	if err != nil {
		return nil, err
	}
	all, err := u.look(ctx, o, keys, before, c, own, func(key *datastore.Key) (*pb.EntityResult, error) {
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
		case first && same(e.before, e.now):
			e.already = true
		case !sure && e.now.GetVersion() != c.version && (w.Gone.All || !w.Gone.Has(e.key)):
			e.why = whyWhich
		case e.changed && e.now == nil:
			e.why = whyDeleted
		case e.changed:
			e.why = whyChanged
		case !first: // another page of the job may have written it
			e.why = whyUnkept
		}
	}
	return all, nil
}

// known returns the keys of entities whose states just before the page's commit are known, because
// nobody changed them after the last whole minute. It lists the others as not restored, except
// entities that batches of earlier attempts have restored.
func known(o *outcome, w *undolog.Wrote, own owned, minute time.Time) (keys []*datastore.Key) {
	sure, unfound := own.sure(w), own.unfound(w)
	switch {
	case sure && unfound > 0:
		const late = "%d entities of the page were put, or came into the query, within the minute before it, " +
			"and after an hour only whole minutes are kept"
		o.leave(nil, unfound, fmt.Sprintf(late, unfound))
	case !sure:
		const unknown = "others have put or deleted entities within the minute before the page, which wrote %d: " +
			"at least %d of them are not known, as after an hour only whole minutes are kept"
		o.leave(nil, unfound, fmt.Sprintf(unknown, w.Written, unfound))
	}
	const why = "its state just before the page is not known: it may have been changed within the minute before, and " +
		"after an hour only whole minutes are kept"
	for _, key := range own.keys {
		switch {
		case o.done[key.Encode()]:
		case !sure && (w.Settled.After(minute) || w.Fresh.All):
			o.leave(key, 1, whyWhich)
		case w.Settled.After(minute) || w.Fresh.Has(key):
			o.leave(key, 1, why)
		default:
			keys = append(keys, key)
		}
	}
	for _, key := range w.Others {
		if !o.done[key.Encode()] {
			o.leave(key, 1, why)
		}
	}
	return keys
}
