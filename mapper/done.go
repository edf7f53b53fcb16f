package mapper

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Completion is what the finalizer of a job gets ([Mapper.WithFinalizer], [Mapper.Forget]). It is
// valid during one call of the finalizer.
type Completion struct {
	// Status has exact numbers, and the State that the job will have at its end.
	Status *Status

	attempt *function.Attempt
	closing *record.Closing // of a job that has deleted its records
}

// RunID returns a text that identifies this job, even among jobs that had the same ID.
func (d *Completion) RunID() string { return d.attempt.Job() }

// Put saves an entity together with the end of the job.
func (d *Completion) Put(key *datastore.Key, src any) { d.attempt.Put(key, src) }

// Delete deletes an entity together with the end of the job.
func (d *Completion) Delete(key *datastore.Key) { d.attempt.Delete(key) }
