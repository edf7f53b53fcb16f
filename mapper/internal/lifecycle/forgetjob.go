package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// jobs looks through the records of jobs, and has those forget that hold something. It returns how
// many it waits for.
func (f Forgetter) jobs(ctx context.Context, l *look) (waits int, err error) {
	there, acts, ids := make(map[record.Ref]bool), []func() error{}, []string(nil)
	for it := f.Client.Run(ctx, datastore.NewQuery(record.JobKind)); ; {
		var all datastore.PropertyList
		key, err := it.Next(&all)
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return 0, err
		}
		l.looked[record.JobKind]++
		j := &record.Job{ID: key.Name}
		if err := property.IgnoreUndeclared(datastore.LoadStruct(j, all)); err != nil {
			return 0, fault.Permanent(fmt.Errorf("the record of job %s can't be read: %w: delete it", key.Name, err))
		}
		there[j.Ref()] = true
		if j.Ref() == f.For {
			continue
		}
		if act := f.job(ctx, j, f.Subject.InText(j.ID), f.Subject.InRecord(record.JobKind, all), l); act != nil {
			acts, ids = append(acts, act), append(ids, j.ID)
		}
	}
	for ref := range maps.Keys(l.holding) {
		if !there[ref] {
			if err := f.orphan(ctx, ref, l); err != nil {
				return 0, err
			}
		}
	}
	if len(acts) == 0 || len(l.blocked) > 0 {
		return 0, nil
	}
	if err := f.note(ctx, ids); err != nil {
		return 0, err
	}
	for _, act := range acts {
		if err := act(); err != nil {
			return 0, err
		}
	}
	return len(acts), nil
}

// orphan has the records of a job that is gone be deleted: a clean-up has left them, or they are of
// a copy.
func (f Forgetter) orphan(ctx context.Context, ref record.Ref, l *look) error {
	before := len(l.orphans)
	if key := l.drafts[ref]; key != nil {
		l.orphans = append(l.orphans, key)
	}
	err := f.Store.Each(ctx, store.Records(ref, "", ""), func(r *record.Range) error {
		l.orphans = append(l.orphans, r.Stored)
		return nil
	})
	if err != nil {
		return err
	}
	err = store.EachBatch(ctx, f.Store, store.Batches(ref, "", ""), func(key *datastore.Key, _ *record.Batch) error {
		l.orphans = append(l.orphans, key)
		return nil
	})
	if err == nil && len(l.orphans) == before {
		l.waits++ // they have gone meanwhile
	}
	return err
}

// job returns what has a job forget; nil if there is nothing to forget, or something is in the way.
func (f Forgetter) job(ctx context.Context, j *record.Job, named, mentioned bool, l *look) func() error {
	ref, holding := j.Ref(), l.holding[j.Ref()]
	values, about := false, f.Subject.IsAbout(j)
	if f.Subject.Everywhere || record.ComesAnywhere(j) {
		// What a page has read it may be about to write into a record, though none has it yet.
		holding = holding || l.open[ref] || !j.Over()
	}
	if f.Subject.Everywhere && j.Over() {
		probe := *j
		values, _ = record.RedactValues(&probe) // an error shows when it is done
		about = about || j.Erased.IsZero() && record.NamesKeys(j)
	}
	if !holding && !mentioned && !named && !about && !values {
		return nil
	}
	block := func(format string, args ...any) func() error {
		l.block(format, args...)
		return nil
	}
	switch err := j.Queue.Is(f.Queue.Name()); {
	case !j.Over():
		return block("job %s is %s: abort it, or wait for its end", j.ID, j.State)
	case err != nil && !f.owns(j.Queue):
		return block("job %s: %v: have it cleaned up there", j.ID, err)
	case j.Cleaning != "":
		return func() error { return nil } // it waits
	case !j.Erased.IsZero() && about && !named && !holding:
		return block("job %s, whose record does not say any more what it was about: delete it", j.ID)
	}
	cleanUp := named || holding || about && !j.Cleaned // and then it looks again
	redact := func(now *record.Job) (changed bool, err error) {
		switch {
		case !now.Over() || now.Cleaning != "":
			return false, nil
		case about && now.Cleaned && !holding:
			changed, err = true, record.Redact(now, f.Subject, saltOf(f.Jobs), time.Now())
		default:
			changed, err = record.RedactTexts(now, f.Subject)
			if err == nil && (about || holding || values) {
				var said bool
				said, err = record.RedactValues(now)
				changed = changed || said
			}
		}
		switch {
		case err != nil:
			return false, fault.Permanent(fmt.Errorf("the record of job %s can't be redacted: %w: delete it", now.ID,
				err))
		case !cleanUp && f.Subject.InJob(now):
			return false,
				fault.Permanent(fmt.Errorf("%w: the record of job %s still mentions what is erased: delete it",
					record.ErrState, now.ID))
		}
		return changed || mentioned, nil // what this build does not know goes, too
	}
	return func() error {
		_, err := f.Store.UpdateJob(ctx, ref, redact)
		if errors.Is(err, record.ErrState) && !fault.IsPermanent(err) {
			return fault.Permanent(fmt.Errorf("job %s can't forget: %w: abort that job, or wait for its end", j.ID,
				err))
		}
		if err != nil || !cleanUp {
			return err
		}
		err = f.of(j.Queue).CleanUp(ctx, ref, CleanUp{IncludeFailures: true, IncludeJob: named})
		if errors.Is(err, record.ErrState) {
			return fault.Permanent(fmt.Errorf("job %s can't be cleaned up: %w", j.ID, err))
		}
		return err
	}
}

// owns reports whether one of the engine's queues is that of a job.
func (f Forgetter) owns(queue record.Owner) bool {
	return slices.ContainsFunc(f.Beside, func(js *Jobs) bool { return queue.Is(js.Queue.Name()) == nil })
}

// of returns the control of the jobs of a queue.
func (f Forgetter) of(queue record.Owner) Control {
	for _, js := range f.Beside {
		if queue != "" && queue.Is(js.Queue.Name()) == nil {
			return Control{js}
		}
	}
	return Control{f.Jobs}
}

// note notes in the record of the job that this is for which jobs forget for it.
func (f Forgetter) note(ctx context.Context, ids []string) error {
	_, err := f.Store.UpdateJob(ctx, f.For, func(j *record.Job) (bool, error) {
		c, err := record.ClosingOf(j)
		if err != nil || c == nil || !c.Forget(ids) {
			return false, err
		}
		j.Closing, err = json.Marshal(c)
		return true, err
	})
	return err
}
