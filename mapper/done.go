package mapper

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Completion is the argument of a job's finalizer ([Mapper.WithFinalizer]), and of the function
// of [Mapper.Forget]. It is valid during one call of the function.
//
// Put and Delete return no error. The job fails if a key is invalid, if a source can't be saved, or
// if the database refuses the writes. All writes together must fit into one Datastore transaction.
type Completion struct {
	// Status has exact numbers, and the State that the job will have at its end.
	Status *Status

	attempt *function.Attempt
	closing *record.Closing // the contents of deleted records; nil unless the job is of [Mapper.Forget]
}

// RunID returns a text that identifies this job, and no earlier or later job with the same ID.
func (d *Completion) RunID() string { return d.attempt.Job() }

// Put saves an entity in the transaction that ends the job. The source is a struct pointer or a
// datastore.PropertyLoadSaver, and the key may be incomplete. In the function of [Mapper.Forget],
// Put has no effect.
func (d *Completion) Put(key *datastore.Key, src any) { d.attempt.Put(key, src) }

// Delete deletes an entity in the transaction that ends the job. In the function of
// [Mapper.Forget], Delete has no effect.
func (d *Completion) Delete(key *datastore.Key) { d.attempt.Delete(key) }
