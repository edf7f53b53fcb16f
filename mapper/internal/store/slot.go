package store

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A HeldError says that a job can't run now, because another one has a slot that it needs.
type HeldError struct {
	Job    record.Ref // that has it
	Mapper string
	Kind   string
}

func (h HeldError) Error() string { return h.Unwrap().Error() }

// Unwrap returns what it says, which is record.ErrState.
func (h HeldError) Unwrap() error {
	return setting.Errorf("%w: job %s runs %s over the kind %q already: pause or abort it, wait for its end, or have "+
		"this one run beside it (StartOptions.AllowOverlap)", record.ErrState, h.Job.ID, h.Mapper, h.Kind)
}

// get reads an entity, of a transaction or not.
type get = func(*datastore.Key, any) error

// slotKeys returns the keys of the slots of a mapper on kinds.
func slotKeys(mapper string, kinds []string) (keys []*datastore.Key) {
	for _, kind := range kinds {
		keys = append(keys, record.SlotKey(mapper, kind))
	}
	return keys
}

// holder reads a slot. With it, it returns a HeldError if a job has it that runs, and is none but
// the one of a reference.
func holder(get get, key *datastore.Key, but record.Ref) (*record.Slot, error) {
	slot := new(record.Slot)
	if _, err := found(get, key, slot); err != nil {
		return nil, err
	}
	has := record.Ref{ID: slot.Job, Incarnation: slot.Incarnation}
	if slot.Job == "" || has == but {
		return slot, nil
	}
	other := &record.Job{ID: slot.Job}
	there, err := found(get, record.JobKey(slot.Job), other)
	if err != nil {
		return nil, err
	}
	if there && other.State == record.Running && other.Ref() == has { // the ID may be another job's by now
		return slot, HeldError{has, slot.Mapper, slot.Kind}
	}
	return slot, nil
}

// takeSlots gives a job that is about to run the slots of its mapper on its kinds: unless another
// one has one of them, and runs.
func takeSlots(tx *datastore.Transaction, job *record.Job) error {
	if job.Beside {
		return nil
	}
	q, err := query.Of(job)
	if err != nil {
		return err
	}
	kinds := q.AllKinds()
	for i, key := range slotKeys(job.Mapper, kinds) {
		slot, err := holder(tx.Get, key, job.Ref())
		if err != nil {
			return err
		}
		if slot.Job == job.ID && slot.Incarnation == job.Incarnation {
			continue
		}
		next := &record.Slot{Mapper: job.Mapper, Kind: kinds[i], Job: job.ID, Incarnation: job.Incarnation}
		if _, err := tx.Put(key, next); err != nil {
			return err
		}
	}
	return nil
}
