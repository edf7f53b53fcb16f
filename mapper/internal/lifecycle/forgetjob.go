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

// jobs searches the records of jobs, and removes the subject from them. It returns the number of
// jobs that must be searched again.
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
		if act := f.job(ctx, j, f.tracesOf(j, all, l), l); act != nil {
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

// orphan adds the records of a deleted job to the records to be deleted. A clean-up has missed
// them, or they are from a copied database.
func (f Forgetter) orphan(ctx context.Context, ref record.Ref, l *look) error {
	before := len(l.orphans)
	l.orphans = append(l.orphans, l.drafts[ref]...)
	err := f.Store.Each(ctx, store.Records(ref, "", ""), func(r *record.Range) error {
		l.orphans = append(l.orphans, r.Stored)
		return nil
	})
	if err != nil {
		return err
	}
	err = f.Store.EachBatch(ctx, store.Batches(ref, "", ""), func(key *datastore.Key, _ *record.Batch) error {
		l.orphans = append(l.orphans, key)
		return nil
	})
	if len(l.orphans) == before {
		l.waits++ // another client has deleted them meanwhile
	}
	return err
}

// traces say in which parts of a job's data the subject is mentioned.
type traces struct {
	named     bool // whether the job's ID mentions the subject
	mentioned bool // whether the job's record mentions the subject
	about     bool // whether the job's query or parameters mention the subject
	values    bool // whether values that the job has stored, such as counters, mention the subject
	holding   bool // whether the records of the job's ranges mention the subject
}

// tracesOf searches a job for the subject.
func (f Forgetter) tracesOf(j *record.Job, stored datastore.PropertyList, l *look) traces {
	t := traces{named: f.Subject.InText(j.ID), mentioned: f.Subject.InRecord(record.JobKind, stored),
		about: f.Subject.IsAbout(j), holding: l.holding[j.Ref()]}
	if f.Subject.Everywhere || j.ComesAnywhere() {
		// A page of a job that has not ended may be about to write the subject into a record.
		t.holding = t.holding || l.open[j.Ref()] || !j.Over()
	}
	if f.Subject.Everywhere && j.Over() {
		probe := *j
		t.values, _ = probe.RedactValues() // redact returns this error
		t.about = t.about || j.NamesKeys()
	}
	return t
}

// job returns a function that removes the subject from a job. If the job does not mention the
// subject, or can't be handled, it returns nil.
func (f Forgetter) job(ctx context.Context, j *record.Job, t traces, l *look) func() error {
	if t == (traces{}) {
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
		return block("job %s: %v: clean it up there", j.ID, err)
	case j.Cleaning != "":
		return func() error { return nil } // the job waits for the clean-up under way
	case !j.Erased.IsZero() && t.about && !t.named && !t.holding:
		return block("job %s, whose record no longer says what it was about: delete it", j.ID)
	}
	cleanUp := t.named || t.holding || t.about && !j.Cleaned // the next search then finds whether more is needed
	return func() error {
		_, err := f.Store.UpdateJob(ctx, j.Ref(), func(now *record.Job) (bool, error) {
			return f.redact(now, t, cleanUp)
		})
		if errors.Is(err, record.ErrState) && !fault.IsPermanent(err) {
			return fault.Permanent(fmt.Errorf("job %s can't forget: %w: abort that job, or wait for its end", j.ID,
				err))
		}
		if err != nil || !cleanUp {
			return err
		}
		err = f.of(j.Queue).CleanUp(ctx, j.Ref(), CleanUp{IncludeFailures: true, IncludeJob: t.named})
		if errors.Is(err, record.ErrState) {
			return fault.Permanent(fmt.Errorf("job %s can't be cleaned up: %w", j.ID, err))
		}
		return err
	}
}

// redact removes the subject from a job's record. If the job runs again by now, or is being cleaned
// up, redact changes nothing. The parameter cleanUp says whether a clean-up follows. Without one,
// it is an error if the record still mentions the subject.
func (f Forgetter) redact(now *record.Job, t traces, cleanUp bool) (changed bool, err error) {
	switch {
	case !now.Over() || now.Cleaning != "":
		return false, nil
	case t.about && now.Cleaned && !t.holding:
		changed, err = true, now.Redact(f.Subject, f.salt(), time.Now())
	default:
		changed, err = now.RedactTexts(f.Subject)
		if err == nil && (t.about || t.holding || t.values) {
			var said bool
			said, err = now.RedactValues()
			changed = changed || said
		}
	}
	switch {
	case err != nil:
		return false, fault.Permanent(fmt.Errorf("the record of job %s can't be redacted: %w: delete it", now.ID,
			err))
	case !cleanUp && f.Subject.InJob(now):
		return false,
			fault.Permanent(fmt.Errorf("%w: the record of job %s still mentions the erased subject: delete it",
				record.ErrState, now.ID))
	}
	return changed || t.mentioned, nil // a write also removes properties that this build does not know
}

// owns reports whether a queue is one of the engine's other queues.
func (f Forgetter) owns(queue record.Owner) bool {
	return slices.ContainsFunc(f.Beside, func(js *Jobs) bool { return queue.Is(js.Queue.Name()) == nil })
}

// of returns the Jobs of one of the engine's queues.
func (f Forgetter) of(queue record.Owner) *Jobs {
	for _, js := range f.Beside {
		if queue != "" && queue.Is(js.Queue.Name()) == nil {
			return js
		}
	}
	return f.Jobs
}

// note adds the IDs of jobs that the erasing job has cleaned up to the erasing job's record, as
// hashes.
func (f Forgetter) note(ctx context.Context, ids []string) error {
	_, err := f.Store.UpdateJob(ctx, f.For, func(j *record.Job) (bool, error) {
		c, err := j.DecodeClosing()
		if c == nil || !c.Forget(ids) {
			return false, err
		}
		j.Closing, err = json.Marshal(c)
		return true, err
	})
	return err
}
