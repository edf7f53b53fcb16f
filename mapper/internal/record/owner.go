package record

import (
	"errors"

	"github.com/scattermap/scattermap/internal/setting"
)

// ErrOtherQueue says that a job belongs to a queue that the engine does not have.
var ErrOtherQueue = errors.New("the job belongs to another queue")

// An Owner is the name of the queue to which a job belongs. It is set when the job starts or is
// moved. It is empty for jobs of older builds, which belong to every queue.
type Owner string

// Is returns nil if the owner is empty, or is the given queue. Otherwise it returns an error that
// names both.
func (o Owner) Is(queue string) error {
	if o == "" || string(o) == queue {
		return nil
	}
	return setting.Errorf("%w: it belongs to %s, and here is %s; Job.Move would move it", ErrOtherQueue, o, queue)
}

// Takes reports whether an engine may run a task of the owner's job. The engine has the queue
// engine. The task was enqueued in the queue put, or in an unknown queue if put is empty.
//
// It returns false if the job was moved away from the queue put: the task is superseded. It returns
// an error if the task is valid, but was delivered to an engine of another queue.
func (o Owner) Takes(put, engine string) (bool, error) {
	if o != "" && put != "" && put != string(o) {
		return false, nil
	}
	err := o.Is(engine)
	return err == nil, err
}

// Move sets the job's owner to o, and reports whether this changes it. If the job has tasks, Move
// raises its generation and epoch. A sweep then enqueues new tasks, and the old tasks are
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

// RefuseMoves prevents other processes from moving the job to this owner. It changes the job's
// record, and their commits require an unchanged record. If the job already has this owner,
// RefuseMoves does nothing.
func (o Owner) RefuseMoves(j *Job) (changed bool) {
	if j.Queue.Is(string(o)) == nil {
		return false
	}
	j.RefusedMoves++
	return true
}
