package record

import (
	"errors"

	"github.com/scattermap/scattermap/internal/setting"
)

// ErrOtherQueue says that a job belongs to a queue that this engine does not use.
var ErrOtherQueue = errors.New("the job belongs to another queue")

// An Owner is the name of the queue to which a job belongs. It is set when the job starts or is
// moved. It is empty for jobs of older builds, which belong to every queue.
type Owner string

// Is returns an error that names both queues if the owner is another queue than the given one. It
// returns nil if they are equal, or if the owner is empty.
func (o Owner) Is(queue string) error {
	if o == "" || string(o) == queue {
		return nil
	}
	return setting.Errorf("%w: it belongs to %s, and here is %s; Job.Move would move it", ErrOtherQueue, o, queue)
}

// Takes reports whether an engine may run a task of a job with this owner. The argument engine is
// the engine's queue, and put is the queue in which the task was enqueued; an empty put means
// unknown.
//
// It returns false if the job was moved away from the queue put, so that another task replaces this
// one. It returns an error if the task is valid, but was delivered to an engine with another queue.
func (o Owner) Takes(put, engine string) (bool, error) {
	if o != "" && put != "" && put != string(o) {
		return false, nil
	}
	err := o.Is(engine)
	return err == nil, err
}

// Move sets the job's owner to o, and reports whether this is a change. If the job has tasks, Move
// raises its generation and epoch. Then the old tasks have no effect any more, and a sweep enqueues
// new ones in the new queue.
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

// RefuseMoves makes other processes fail that are about to move the job to the owner o. It changes
// the job's record, and their commits require an unchanged record. If the job already has this
// owner, RefuseMoves does nothing and returns false.
func (o Owner) RefuseMoves(j *Job) (changed bool) {
	if j.Queue.Is(string(o)) == nil {
		return false
	}
	j.RefusedMoves++
	return true
}
