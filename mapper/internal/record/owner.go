package record

import (
	"errors"

	"github.com/scattermap/scattermap/internal/setting"
)

// ErrOtherQueue says that a job belongs to another queue than the engine that was asked.
var ErrOtherQueue = errors.New("the job belongs to another queue")

// An Owner is the queue that a job belongs to: the one that it was started with, or was moved to
// last. An empty one is every queue: an older build has started the job.
type Owner string

// Is returns an error unless the owner is a queue, which is that of this engine.
func (o Owner) Is(queue string) error {
	if o == "" || string(o) == queue {
		return nil
	}
	return setting.Errorf("%w: it belongs to %s, and here is %s; Job.Move would move it", ErrOtherQueue, o, queue)
}

// Takes reports whether an engine of a queue runs a task of the owner's job that was put into a
// queue, which is empty if nobody knows. A task of a queue that the job was moved away from is
// superseded. An error means that the task is the job's, and has come to an engine of another
// queue.
func (o Owner) Takes(put, engine string) (bool, error) {
	if o != "" && put != "" && put != string(o) {
		return false, nil
	}
	err := o.Is(engine)
	return err == nil, err
}

// Move gives a job to another owner, and reports whether that is one. A job that has tasks gets
// others there, under new names; those that it had are superseded.
func (o Owner) Move(j *Job) (changed bool) {
	if j.Queue == o {
		return false
	}
	j.Queue = o
	if !j.Over() || j.Cleaning != "" {
		j.Generation++
		j.Epoch++
	}
	return true
}

// Forestall has a move to this owner that is under way be refused, unless it has taken place.
func (o Owner) Forestall(j *Job) (changed bool) {
	if j.Queue.Is(string(o)) == nil {
		return false
	}
	j.Forestalled++
	return true
}
