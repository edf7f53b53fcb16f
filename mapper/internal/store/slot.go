package store

import (
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// takeSlots gives a job that is about to run the slots of its mapper on its kinds: unless another one has them, and runs. A run of
// a schedule, whose overlap says what happens then, needs none.
func takeSlots(tx *datastore.Transaction, job *record.Job) error {
	if job.Beside || job.Schedule != "" {
		return nil
	}
	q, err := query.Of(job)
	if err != nil {
		return err
	}
	for _, kind := range q.AllKinds() {
		key, slot := record.SlotKey(job.Mapper, kind), new(record.Slot)
		if _, err := found(tx.Get, key, slot); err != nil {
			return err
		}
		if slot.Job == job.ID && slot.Incarnation == job.Incarnation {
			continue
		}
		other := &record.Job{ID: slot.Job}
		if slot.Job != "" && slot.Job != job.ID {
			there, err := found(tx.Get, record.JobKey(slot.Job), other)
			if err != nil {
				return err
			}
			if there && other.State == record.Running && other.Incarnation == slot.Incarnation {
				return fmt.Errorf("%w: job %s runs %s over the kind %q already: pause or abort it, wait for its end, or have this one run beside it (StartOptions.Beside)",
					record.ErrState, other.ID, job.Mapper, kind)
			}
		}
		if _, err := tx.Put(key, &record.Slot{Mapper: job.Mapper, Kind: kind, Job: job.ID, Incarnation: job.Incarnation}); err != nil {
			return err
		}
	}
	return nil
}
