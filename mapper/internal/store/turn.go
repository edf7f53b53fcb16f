package store

import (
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Schedule reads the record of a schedule, and whether its last run is unfinished. Get reads an entity, of a transaction or not.
func Schedule(get func(*datastore.Key, any) error, name string) (s *record.Schedule, unfinished bool, err error) {
	s = new(record.Schedule)
	if _, err := found(get, record.ScheduleKey(name), s); err != nil || s.Run == "" {
		return s, false, err
	}
	run := &record.Job{ID: s.Run}
	there, err := found(get, record.JobKey(s.Run), run) // it may have been cleaned up
	return s, there && run.Unfinished(), err
}

// found reads an entity, and reports whether it is there.
func found(get func(*datastore.Key, any) error, key *datastore.Key, dst any) (bool, error) {
	err := property.IgnoreUndeclared(get(key, dst))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return false, nil
	}
	return err == nil, err
}

// takeTurn has a run of a schedule that had ended go on: unless another one is unfinished. From here on it is the schedule's last.
func takeTurn(tx *datastore.Transaction, job *record.Job) error {
	if job.Schedule == "" {
		return nil
	}
	s, unfinished, err := Schedule(tx.Get, job.Schedule)
	switch {
	case err != nil || s.Run == job.ID || s.Run == "":
		return err
	case unfinished:
		return fmt.Errorf("%w: run %s of its schedule %q is unfinished, and one of them runs at a time", record.ErrState, s.Run, job.Schedule)
	}
	s.Run = job.ID
	_, err = tx.Put(record.ScheduleKey(job.Schedule), s)
	return err
}
