package mapper

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Completion is a job that is done, in the hands of its finalizer. It belongs to one
// attempt.
type Completion struct {
	// Status is how the job stands, with exact numbers; its State is the one that it
	// will end with.
	Status *Status

	attempt *function.Attempt
	closing *record.Closing // of a job that has deleted its records
}

// RunID returns what tells this job from all others, also from a later one of the same ID.
func (d *Completion) RunID() string { return d.attempt.Job() }

// Put saves an entity together with the end of the job.
func (d *Completion) Put(key *datastore.Key, src any) { d.attempt.Put(key, src) }

// Delete deletes an entity together with the end of the job.
func (d *Completion) Delete(key *datastore.Key) { d.attempt.Delete(key) }
