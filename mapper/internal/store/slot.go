package store

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A HeldError says that a job can't run now, because another job runs the same mapper over one of
// its kinds. The other job holds a lock for this mapper and kind: see [record.Slot].
type HeldError struct {
	Job    record.Ref // the other job
	Mapper string
	Kind   string
}

func (h HeldError) Error() string { return h.Unwrap().Error() }

// Unwrap returns record.ErrState, with a text that names the other job.
func (h HeldError) Unwrap() error {
	return setting.Errorf("%w: job %s runs %s over the kind %q already: pause or abort it, wait for its end, or let "+
		"this one run beside it (StartOptions.AllowOverlap)", record.ErrState, h.Job.ID, h.Mapper, h.Kind)
}

// A get is a function that reads an entity, in a transaction or without one.
type get = func(*datastore.Key, any) error

// slotKeys returns the keys of the locks of a mapper, one for each kind.
func slotKeys(mapper string, kinds []string) (keys []*datastore.Key) {
	for _, kind := range kinds {
		keys = append(keys, record.SlotKey(mapper, kind))
	}
	return keys
}

// checkSlot returns a [HeldError] if a running job holds the lock with this key. It ignores the job
// except.
func checkSlot(get get, key *datastore.Key, except record.Ref) error {
	slot := new(record.Slot)
	if _, err := found(get, key, slot); err != nil {
		return err
	}
	has := record.Ref{ID: slot.Job, Incarnation: slot.Incarnation}
	if slot.Job == "" || has == except {
		return nil
	}
	other := &record.Job{ID: slot.Job}
	if _, err := found(get, record.JobKey(slot.Job), other); err != nil {
		return err
	}
	if other.State == record.Running && other.Ref() == has { // the slot may name an earlier job with the same ID
		return HeldError{has, slot.Mapper, slot.Kind}
	}
	return nil
}

// takeSlots takes the locks ([record.Slot]) of the job's mapper on all of the job's kinds. It is
// called when the job starts to run. If another running job holds one of them, it returns a
// [HeldError].
func takeSlots(tx *datastore.Transaction, job *record.Job) error {
	if job.Beside {
		return nil
	}
	q, err := query.Of(job)
	if err != nil {
		return err
	}
	kinds := q.AllKinds()
	var all []*datastore.Mutation
	for i, key := range slotKeys(job.Mapper, kinds) {
		if err := checkSlot(tx.Get, key, job.Ref()); err != nil {
			return err
		}
		next := &record.Slot{Mapper: job.Mapper, Kind: kinds[i], Job: job.ID, Incarnation: job.Incarnation}
		all = append(all, datastore.NewUpsert(key, next))
	}
	return Write(tx, all...)
}
