package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Forgetter has all records of ours forget a subject. It does a part, and says what it waits for,
// until it looks through all of them and finds nothing: so what it then says has been seen, and not
// concluded. What could bring something back has been fenced before, by the clean-up of its job:
// that takes open ranges away, and raises the epoch.
//
// A record of any kind that mentions the subject has one of three fates. It is deleted. It is
// written without that, by a transaction that requires the record as it will be not to mention it.
// Or it is in the way, and an error names it. In the first two cases, and while it waits for its
// job to go, the look is not the last one.
type Forgetter struct {
	*Jobs
	Client  *datastore.Client
	Subject record.Subject
	For     record.Ref // the job that it is for, whose own record does not count
}

// Looked is what was looked through: how many records by kind.
type Looked map[string]int64

// ErrWaits says that something goes on which has to end first.
var ErrWaits = errors.New("its records of the subject are being cleaned up")

// a look is what was found.
type look struct {
	looked  Looked
	holding map[record.Ref]bool // jobs whose records hold something; false: only their own record, if at all
	open    map[record.Ref]bool // jobs that have open ranges, which pages may be about to commit
	orphans []*datastore.Key    // records that hold something and belong to no job that is there
	drafts  map[record.Ref][]*datastore.Key
	blocked []string
	waits   int // what waits for the end of something
}

// Forget looks through all records. Without an error none holds anything of the subject.
func (f Forgetter) Forget(ctx context.Context) (Looked, error) {
	l := &look{looked: make(Looked), holding: make(map[record.Ref]bool), open: make(map[record.Ref]bool),
		drafts: make(map[record.Ref][]*datastore.Key)}
	kinds, err := f.kinds(ctx)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		if err := f.read(ctx, kind, l); err != nil {
			return nil, fmt.Errorf("look through %s: %w", kind, err)
		}
	}
	waits, err := f.jobs(ctx, l)
	if err != nil {
		return nil, err
	}
	if len(l.blocked) > 0 {
		slices.Sort(l.blocked)
		more := ""
		if n := len(l.blocked); n > 10 {
			l.blocked, more = l.blocked[:10], fmt.Sprintf("; and %d more", n-10)
		}
		return nil, fault.Permanent(fmt.Errorf("%w: records hold something of what is erased: %s%s", record.ErrState,
			strings.Join(l.blocked, "; "), more))
	}
	if len(l.orphans) > 0 {
		for some := range slices.Chunk(l.orphans, cleanupBatch) {
			if err := f.Store.Delete(ctx, some); err != nil {
				return nil, err
			}
		}
	}
	if n := waits + l.waits + len(l.orphans); n > 0 {
		return nil, fmt.Errorf("%w: it looks again at %d jobs and records", ErrWaits, n)
	}
	return l.looked, nil
}

// kinds returns the kinds that our records have.
func (f Forgetter) kinds(ctx context.Context) (kinds []string, err error) {
	keys, err := f.Client.GetAll(ctx, datastore.NewQuery("__kind__").KeysOnly(), nil)
	for _, key := range keys {
		if names.Ours("", key.Name) && key.Name != record.JobKind {
			kinds = append(kinds, key.Name)
		}
	}
	return kinds, err
}

// read looks through the records of a kind, but those of jobs.
func (f Forgetter) read(ctx context.Context, kind string, l *look) error {
	for it := f.Client.Run(ctx, datastore.NewQuery(kind)); ; {
		var all datastore.PropertyList
		key, err := it.Next(&all)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		l.looked[kind]++
		ref, belongs := refOf(kind, key, all)
		if belongs && ref == f.For {
			continue // it is about to go
		}
		if kind == record.RangeKind && isOpen(all) {
			l.open[ref] = true
		}
		holds := f.Subject.Everywhere && belongs || f.Subject.InText(key.Name) || f.Subject.InRecord(kind, all)
		if !holds {
			continue
		}
		switch {
		case belongs && !isNamed(key, ref): // no clean-up of that job finds it
			l.block("the %s %q says that it is of job %s, and has the name of none of its records: delete it", kind,
				key.Name, ref.ID)
		case belongs:
			l.holding[ref] = true
			if kind == record.DraftKind {
				l.drafts[ref] = append(l.drafts[ref], key)
			}
		case kind == record.RangeKind: // of a start that came too late
			l.orphans = append(l.orphans, key)
		case kind == record.SlotKind:
			err = f.slot(ctx, key, l)
		case kind == record.ScheduleKind:
			err = f.schedule(ctx, key, l)
		default:
			l.block("the %s %q: discard what it belongs to, or delete it", kind, key.Name)
		}
		if err != nil {
			return err
		}
	}
}

// block notes a record that is in the way.
func (l *look) block(format string, args ...any) {
	l.blocked = append(l.blocked, fmt.Sprintf(format, args...))
}

// isNamed reports whether a record has the name of one of a job, as store.Records finds it.
func isNamed(key *datastore.Key, job record.Ref) bool {
	id, ok := strings.CutPrefix(key.Name, record.RangePrefix(job))
	return ok && id < "g"
}

// isOpen reports whether a range is open.
func isOpen(all []datastore.Property) bool {
	return slices.ContainsFunc(all, func(p datastore.Property) bool { return p.Name == "open" && p.Value != "" })
}

// refOf returns the job that a record belongs to, if it does.
func refOf(kind string, key *datastore.Key, all []datastore.Property) (ref record.Ref, belongs bool) {
	switch kind {
	case record.RangeKind, record.BatchKind:
		for _, p := range all {
			switch text, _ := p.Value.(string); p.Name {
			case "job":
				ref.ID = text
			case "incarnation":
				ref.Incarnation = text
			}
		}
	case record.DraftKind: // its name is HASH.ID.INCARNATION.draft, or that of a rate clock
		if parts := strings.Split(key.Name, "."); len(parts) == 4 {
			ref = record.Ref{ID: parts[1], Incarnation: parts[2]}
		}
	}
	return ref, ref.ID != ""
}

// get reads a record in a transaction. One that can't be read never can.
func get(tx *datastore.Transaction, key *datastore.Key, into any) error {
	err := property.IgnoreUndeclared(tx.Get(key, into))
	if errors.As(err, new(*datastore.ErrFieldMismatch)) {
		return fault.Permanent(fmt.Errorf("the %s %q can't be read: %w: delete it", key.Kind, key.Name, err))
	}
	return err
}

// mentions reports whether a record of a kind mentions the subject, once it is written.
func (f Forgetter) mentions(kind string, written any) (bool, error) {
	properties, err := datastore.SaveStruct(written)
	return err == nil && f.Subject.InRecord(kind, properties), err
}

// slot deletes a slot that names a job which is gone: nobody has it then. One whose job is there
// waits for it to go.
func (f Forgetter) slot(ctx context.Context, key *datastore.Key, l *look) error {
	l.waits++
	return f.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		s := new(record.Slot)
		if err := get(tx, key, s); errors.Is(err, datastore.ErrNoSuchEntity) {
			return store.ErrNothing
		} else if err != nil {
			return err
		}
		if s.Job == "" {
			return tx.Delete(key)
		}
		_, err := store.GetJob(tx, record.Ref{ID: s.Job, Incarnation: s.Incarnation})
		if errors.Is(err, record.ErrNoSuchJob) {
			return tx.Delete(key)
		}
		if err != nil {
			return err
		}
		if _, err = tx.Put(key, s); err != nil || f.Subject.InText(s.Job) { // which goes then
			return err
		}
		in, err := f.mentions(record.SlotKind, s)
		if in {
			err = fault.Permanent(fmt.Errorf("the slot %q mentions what is erased: delete it", key.Name))
		}
		return err
	})
}

// schedule has a schedule forget its last run, if that is gone, and jobs that were in the way of
// its ticks.
func (f Forgetter) schedule(ctx context.Context, key *datastore.Key, l *look) error {
	if f.Subject.InText(key.Name) {
		l.block("the schedule %q has it in its name: delete its record", key.Name)
		return nil
	}
	blocked := ""
	err := f.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		blocked = ""
		s := new(record.Schedule)
		if err := get(tx, key, s); errors.Is(err, datastore.ErrNoSuchEntity) {
			return store.ErrNothing
		} else if err != nil {
			return err
		}
		s.RedactPast(f.Subject, f.salt())
		rest := *s
		if f.Subject.InText(s.Run) {
			rest.Run = "" // when the job goes
			switch _, err := store.GetJob(tx, record.Ref{ID: s.Run}); {
			case errors.Is(err, record.ErrNoSuchJob):
				s.Run = ""
			case err != nil:
				return err
			}
		}
		in, err := f.mentions(record.ScheduleKind, &rest)
		if err != nil {
			return err
		}
		if !in {
			_, err = tx.Put(key, s)
			return err
		}
		blocked = "the schedule %q mentions it: delete its record"
		rest.Queued = nil
		if in, err = f.mentions(record.ScheduleKind, &rest); !in {
			blocked = "a tick of the schedule %q waits, and would start a job over it: wait for that job's end, or " +
				"delete " +
				"the schedule's record if nothing advances it"
		}
		return cmp.Or(err, store.ErrNothing)
	})
	if blocked != "" {
		l.block(blocked, key.Name)
	} else {
		l.waits++
	}
	return err
}
