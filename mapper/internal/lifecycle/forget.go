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

// A Forgetter removes a subject, such as the data of one customer, from all records of scattermap.
// Each call of Forget does a part of the work, and returns an error that says for what it waits.
// The last call searches all records and finds nothing. So the success is checked, and not only
// concluded.
//
// A page that commits late could store the subject again. The clean-up of the page's job prevents
// this: it abandons open ranges, and raises the job's epoch. A late commit fails because of either.
//
// One of three things happens to a record that mentions the subject:
//
//   - It is deleted.
//   - It is rewritten without the subject. The transaction checks this.
//   - It can't be handled, and an error names it.
//
// After the first two, and while a clean-up of a job is under way, another search follows.
type Forgetter struct {
	*Jobs
	Client  *datastore.Client
	Subject record.Subject
	For     record.Ref // the job that erases the subject; its own record is not searched
}

// Looked has the number of searched records of each kind.
type Looked map[string]int64

// ErrWaits says that Forget must be called again, after the clean-ups of other jobs.
var ErrWaits = errors.New("records of the subject are being cleaned up")

// A look is what one search of scattermap's records for the subject has found.
type look struct {
	looked  Looked
	holding map[record.Ref]bool // jobs whose ranges' records mention the subject
	open    map[record.Ref]bool // jobs with open ranges, because a page of them may be about to commit
	orphans []*datastore.Key    // records of deleted jobs, which are to be deleted
	drafts  map[record.Ref][]*datastore.Key
	blocked []string
	waits   int // number of records to search again after a clean-up
}

// Forget searches all records for the subject, and removes it. If it returns no error, it has found
// no record that mentions the subject.
func (f Forgetter) Forget(ctx context.Context) (Looked, error) {
	l := &look{looked: make(Looked), holding: make(map[record.Ref]bool), open: make(map[record.Ref]bool),
		drafts: make(map[record.Ref][]*datastore.Key)}
	kinds, err := f.kinds(ctx)
	if err == nil {
		f.Subject.Others, err = f.others(ctx)
	}
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
		return nil, fault.Permanent(fmt.Errorf("%w: records mention the erased subject: %s%s", record.ErrState,
			strings.Join(l.blocked, "; "), more))
	}
	for some := range slices.Chunk(l.orphans, cleanupBatch) {
		if err := f.Store.Delete(ctx, some); err != nil {
			return nil, err
		}
	}
	if n := waits + l.waits + len(l.orphans); n > 0 {
		return nil, fmt.Errorf("%w: number of jobs and records that remain to be checked: %d", ErrWaits, n)
	}
	return l.looked, nil
}

// kinds returns the kinds of scattermap's records in the database.
func (f Forgetter) kinds(ctx context.Context) (kinds []string, err error) {
	keys, err := f.Client.GetAll(ctx, datastore.NewQuery("__kind__").KeysOnly(), nil)
	for _, key := range keys {
		if names.Ours("", key.Name) && key.Name != record.JobKind {
			kinds = append(kinds, key.Name)
		}
	}
	return kinds, err
}

// others returns the names of namespaces that contain the name of the subject's namespace, such as
// acme-eu for acme. Texts with such a name do not mention the subject. The name acme. is left out,
// because a sentence about acme may end with it.
func (f Forgetter) others(ctx context.Context) (map[string]bool, error) {
	if f.Subject.Namespace == "" {
		return nil, nil
	}
	all, bare := make(map[string]bool), func(name string) string { return strings.Trim(name, "._-") }
	keys, err := f.Client.GetAll(ctx, datastore.NewQuery("__namespace__").KeysOnly(), nil)
	for _, key := range keys {
		if strings.Contains(key.Name, f.Subject.Namespace) && bare(key.Name) != bare(f.Subject.Namespace) {
			all[key.Name] = true
		}
	}
	return all, err
}

// read searches the records of a kind. It is for all kinds except jobs.
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
		if ref == f.For {
			continue // the job's records are about to be deleted
		}
		if isOpen(all) {
			l.open[ref] = true
		}
		holds := f.Subject.Everywhere && belongs || f.Subject.InText(key.Name) || f.Subject.InRecord(kind, all)
		if !holds {
			continue
		}
		switch {
		case belongs && !isNamed(key, ref): // the clean-up of that job would not find this record
			l.block("the %s %q says that it is a record of job %s, but its name is not in that job's range of names: "+
				"delete it",
				kind, key.Name, ref.ID)
		case belongs:
			l.holding[ref] = true
			if kind == record.DraftKind {
				l.drafts[ref] = append(l.drafts[ref], key)
			}
		case kind == record.RangeKind: // a late start of a job has left this record
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

// block adds a text about a record that can't be handled.
func (l *look) block(format string, args ...any) {
	l.blocked = append(l.blocked, fmt.Sprintf(format, args...))
}

// isNamed reports whether the key has the form of a name of the job's range records. Only such
// records are found by store.Records.
func isNamed(key *datastore.Key, job record.Ref) bool {
	id, ok := strings.CutPrefix(key.Name, record.RangePrefix(job))
	return ok && id < "g"
}

// isOpen reports whether a record with these properties is an open range.
func isOpen(all []datastore.Property) bool {
	return slices.ContainsFunc(all, func(p datastore.Property) bool { return p.Name == "open" && p.Value != "" })
}

// refOf returns the job to which a record belongs. If it belongs to none, refOf returns false.
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
	case record.DraftKind: // a draft's name is HASH.ID.INCARNATION.WORD
		if parts := strings.Split(key.Name, "."); len(parts) == 4 {
			ref = record.Ref{ID: parts[1], Incarnation: parts[2]}
		}
	}
	return ref, ref.ID != ""
}

// get reads a record in a transaction. A record that can't be decoded is a permanent error.
func get(tx *datastore.Transaction, key *datastore.Key, into any) error {
	err := property.IgnoreUndeclared(tx.Get(key, into))
	if errors.As(err, new(*datastore.ErrFieldMismatch)) {
		return fault.Permanent(fmt.Errorf("the %s %q can't be read: %w: delete it", key.Kind, key.Name, err))
	}
	return err
}

// mentions reports whether a record mentions the subject. The caller is about to write it.
func (f Forgetter) mentions(kind string, written any) (bool, error) {
	properties, err := datastore.SaveStruct(written)
	return err == nil && f.Subject.InRecord(kind, properties), err
}

// slot deletes a lock of a mapper on a kind ([record.Slot]), if the job that held it is deleted. If
// the job exists, the lock has to wait for the job's clean-up.
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
		if _, err = tx.Put(key, s); err != nil || f.Subject.InText(s.Job) { // this record is deleted after its job
			return err
		}
		in, err := f.mentions(record.SlotKind, s)
		if in {
			err = fault.Permanent(fmt.Errorf("the slot %q mentions the erased subject: delete it", key.Name))
		}
		return err
	})
}

// schedule removes the subject from a schedule's record. It replaces the subject in past ticks. If
// the ID of the last run contains the subject, schedule removes this ID once the run is deleted. If
// the record mentions the subject elsewhere, for example in a waiting tick, it can't be handled,
// and an error says so.
func (f Forgetter) schedule(ctx context.Context, key *datastore.Key, l *look) error {
	if f.Subject.InText(key.Name) {
		l.block("the schedule %q has the subject in its name: delete its record", key.Name)
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
			rest.Run = "" // the ID is removed after the run is deleted
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
		blocked = "the schedule %q mentions the subject: delete its record"
		rest.Queued = nil
		if in, err = f.mentions(record.ScheduleKind, &rest); !in {
			blocked = "a tick of the schedule %q waits, and would start a job over the subject: wait for that job's " +
				"end, " +
				"or delete the schedule's record if nothing advances it"
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
