package undo

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Two pages of a job may have deleted one entity, which somebody put again in between. The undo of the page that
// deleted it first sees nothing of that, and restores it. Then that of the other page restores what was there before
// its own deletion: over the write of this undo, and over nobody else's.

// lookAgain finds those of the entities that a commit has deleted that are there again by this undo, and that it
// deleted last.
func (u undoer) lookAgain(ctx context.Context, o *outcome, c commit, all []*entity) error {
	p := past{u}
	p.history = u.undoes
	p.params.Job, p.params.Incarnation = o.job.Ref.ID, o.job.Ref.Incarnation
	for _, e := range all {
		if !e.deleted || !e.changed || e.now == nil {
			continue
		}
		at := timeOf(e.now)
		if before, err := p.beforeJob(ctx, at); err != nil || before {
			if err != nil {
				return err
			}
			continue
		}
		by, err := p.closersOf(ctx, at)
		if err != nil {
			return err
		}
		for _, r := range by.all {
			if !r.at.Equal(at) || !r.has(e.key, at, false) {
				continue
			}
			last, found, err := u.lastOf(ctx, r.Range, c, e.key)
			if err != nil {
				return err
			}
			if found && last.Before(c.at) {
				e.changed, e.again = false, true
			}
		}
	}
	return nil
}

// lastOf returns when pages that a page of the undo is over have written an entity last, other than by a commit.
func (u undoer) lastOf(ctx context.Context, undone *record.Range, c commit, key *datastore.Key) (last time.Time, found bool, err error) {
	q := datastore.NewQuery(record.RangeKind).Order("__key__").Limit(int(max(1, undone.Entities)))
	prefix := record.RangePrefix(u.undone())
	first, end := datastore.NameKey(record.RangeKind, prefix+"0", nil), datastore.NameKey(record.RangeKind, prefix+"g", nil) // see Records
	if undone.Start != nil {
		first = undone.Start.Key
	}
	if undone.End != nil {
		end = undone.End.Key
	}
	var all []*record.Range
	reading, results := wire.Reading(ctx)
	q = q.FilterField("__key__", ">=", first).FilterField("__key__", "<", end)
	if _, err := u.client.GetAll(reading, q, &all); property.IgnoreUndeclared(err) != nil {
		return last, false, err
	}
	for _, r := range all {
		stored := results.Of(r.Key())
		if r.Key().Equal(c.record) || stored == nil {
			continue
		}
		w, err := record.DecodeWrote(r.Wrote)
		if err != nil {
			return last, false, fault.Permanent(err)
		}
		at := timeOf(stored)
		if (closer{r, at, w}).has(key, at, u.query.ShardBy != "") {
			found = true
			if at.After(last) {
				last = at
			}
		}
	}
	return last, found, nil
}
