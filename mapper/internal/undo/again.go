package undo

import (
	"context"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Two pages of a job may both have deleted an entity, if another client put it again in between.
// The undo of the first page does not see this, and restores the entity. Later, the undo of the
// second page finds that the entity exists again. It may then restore the state before the second
// deletion, because the only write since then was this undo's own.

// lookAgain looks for entities that the commit c deleted, and that exist again because this undo
// has restored them for another page of the job. It marks such an entity (again = true), unless
// a page at or after c wrote what was restored.
func (u undoer) lookAgain(ctx context.Context, o *outcome, c commit, all []*entity) error {
	p := u.itself(o)
	// the pages of the undone job, by the ID of the undo's range that took them back
	undone := make(map[string][]closer)
	for _, e := range all {
		if !e.deleted || e.now == nil {
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
			pages, ok := undone[r.ID]
			if !ok {
				if pages, err = u.pagesOf(ctx, r.Range); err != nil {
					return err
				}
				undone[r.ID] = pages
			}
			others := 0
			// The result is true if another page wrote the entity, and none at or after c.
			last := slices.IndexFunc(pages, func(p closer) bool {
				if !p.has(e.key, p.at, u.query.ShardBy != "") {
					return false
				}
				others++
				return !p.at.Before(c.at)
			}) < 0
			if last && others > 0 {
				e.changed, e.again = false, true
			}
		}
	}
	return nil
}

// itself returns the past of the undo's own writes.
func (u undoer) itself(o *outcome) past {
	u.history = u.undoes
	u.params.Job, u.params.Incarnation = o.job.Ref.ID, o.job.Ref.Incarnation
	return past{u}
}

// pagesOf returns the records of the pages of the undone job that a range of the undo has taken
// back.
func (u undoer) pagesOf(ctx context.Context, of *record.Range) (pages []closer, err error) {
	prefix := record.RangePrefix(u.undone())
	first := prefix + "0" // the same lower bound as in Records
	if of.Start != nil {
		first = of.Start.Key.Name
	}
	q := datastore.NewQuery(record.RangeKind).Order("__key__").Limit(int(of.Entities)).
		FilterField("__key__", ">=", datastore.NameKey(record.RangeKind, first, nil)).
		FilterField("__key__", "<", datastore.NameKey(record.RangeKind, prefix+"g", nil))
	var all []*record.Range
	reading, results := wire.Reading(ctx)
	if _, err := u.client.GetAll(reading, q, &all); property.IgnoreUndeclared(err) != nil {
		return nil, err
	}
	for _, r := range all {
		w, err := undolog.Decode(r.Wrote)
		if err != nil {
			return nil, fault.Permanent(err)
		}
		pages = append(pages, closer{r, timeOf(results.Of(r.Key())), w})
	}
	return pages, nil
}
