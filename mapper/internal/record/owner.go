package record

import (
	"errors"

	"github.com/scattermap/scattermap/internal/setting"
)

// ErrOtherQueue says that a job belongs to another queue than the engine's.
var ErrOtherQueue = errors.New("the job belongs to another queue")

// An Owner is the name of the queue that a job belongs to. Start or Move has set it. An empty owner
// means every queue: older builds started jobs without one.
type Owner string

// Is returns an error unless the owner is empty, or is the queue of the calling engine.
func (o Owner) Is(queue string) error {
	if o == "" || string(o) == queue {
		return nil
	}
	return setting.Errorf("%w: it belongs to %s, and here is %s; Job.Move would move it", ErrOtherQueue, o, queue)
}

// Takes reports whether an engine of the queue engine runs a task of the owner's job that was
// enqueued in the queue put. Put is empty if it is unknown.
//
// It returns false without an error for a superseded task: it came through a queue that the job was
// moved away from. An error means that a task of the job came to an engine of another queue.
func (o Owner) Takes(put, engine string) (bool, error) {
	if o != "" && put != "" && put != string(o) {
		return false, nil
	}
	err := o.Is(engine)
	return err == nil, err
}

// Move gives a job to another owner, and reports whether the owner has changed. If the job has
// tasks, it gets a new generation and epoch. So a sweep enqueues new tasks, and the old ones are
// superseded.
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

// Forestall refuses moves to this owner that are under way: it changes the job's record, so their
// commits fail. It does nothing if the job has this owner already.
func (o Owner) Forestall(j *Job) (changed bool) {
	if j.Queue.Is(string(o)) == nil {
		return false
	}
	j.Forestalled++
	return true
}
