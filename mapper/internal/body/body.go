package body

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// RangePath is the path of range tasks, below the queue's URL.
const RangePath = "range"

// A Range is the body of the HTTP request for a range's task. It names the range, and has nothing
// of its contents.
type Range struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Range       string `json:"range"`
	Generation  int64  `json:"generation"`
	Idle        bool   `json:"idle,omitempty"` // whether a worker was idle when the task was created
}

// Ref returns the ID and incarnation of the task's job.
func (t Range) Ref() record.Ref { return record.Ref{ID: t.Job, Incarnation: t.Incarnation} }

// ParseRange decodes and checks the body of a range's task. It checks everything, because anybody
// may have sent the request.
func ParseRange(body []byte) (Range, error) {
	var t Range
	if err := json.Unmarshal(body, &t); err != nil {
		return Range{}, err
	}
	if !record.ValidJobID(t.Job) || !record.ValidIncarnation(t.Incarnation) || !record.ValidRangeID(t.Range) ||
		t.Generation < 0 {
		return Range{}, errors.New("it names no valid job and range")
	}
	return t, nil
}

// TaskOf returns the task of a pending range. Cloud Tasks reserves a task's name for a day after
// the task is gone. So to enqueue another task, the range or the job needs another generation.
func TaskOf(r *record.Range, j *record.Job) tasks.Task { return taskOf(r, j, false) }

// TaskForIdle returns the task of a pending range for an idle worker. Its body says that a worker
// is idle, so its delivery tells how long the queue takes.
func TaskForIdle(r *record.Range, j *record.Job) tasks.Task { return taskOf(r, j, true) }

func taskOf(r *record.Range, j *record.Job, idle bool) tasks.Task {
	body, err := json.Marshal(Range{Job: r.Job, Incarnation: r.Incarnation, Range: r.ID, Generation: r.Generation,
		Idle: idle})
	if err != nil {
		panic("mapper: a struct of strings does not encode: " + err.Error())
	}
	return tasks.Task{
		ID: tasks.ID("range", r.Ref().String(), r.ID,
			strconv.FormatInt(j.Generation, 10), strconv.FormatInt(r.Generation, 10)),
		Path:         RangePath,
		Body:         body,
		ScheduleTime: r.NotBefore,
	}
}

// A Job is the body of the HTTP request for a task of a whole job. Such tasks are chains: each does
// a limited part of the work, and enqueues the next.
type Job struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Tick        int64  `json:"tick,omitempty"`  // the number of the sweep, which stands for the time when it is due
	After       string `json:"after,omitempty"` // the ID of the record after which the task goes on
	All         bool   `json:"all,omitempty"`   // whether the task, a sweep, checks ranges of any age
	// a random number if the task is a guard, enqueued before a commit; 0: it is not
	Guard uint64 `json:"guard,omitempty"`
	Link  int64  `json:"link,omitempty"` // the task's number in a chain of tasks that add up records

	// The following fields are about the delivery, and not part of the body.
	Queued  tasks.Delivery `json:"-"` // the request of the queue
	BegunAt time.Time      `json:"-"` // when the queue's request arrived
}

// Task returns the task for a job and a path, due at the time at. Its name depends only on the
// arguments and the job, so a task that is enqueued twice exists once. A later job with the same ID
// has other names.
func (t Job) Task(j *record.Job, path string, at time.Time) tasks.Task {
	t.Job, t.Incarnation, t.Epoch = j.ID, j.Incarnation, j.Epoch
	body, err := json.Marshal(t)
	if err != nil {
		panic("mapper: a struct of strings does not encode: " + err.Error())
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	parts := []string{path, j.Ref().String(), number(j.Generation), number(j.Epoch), number(t.Tick), t.After}
	if t.Guard != 0 {
		parts = append(parts, strconv.FormatUint(t.Guard, 10))
	}
	if t.Link > 0 {
		parts = append(parts, "link", number(t.Link))
	}
	// Sweeps, and tasks that continue after a record, are chains of any length, so each has its own
	// trace.
	return tasks.Task{ID: tasks.ID(parts...), Path: path, Body: body, ScheduleTime: at, NewTrace: !at.IsZero() ||
		t.After != "" ||
		t.Link > 0}
}

// Current reports whether the job runs, and its epoch is the task's one.
func (t Job) Current(j *record.Job) bool { return j.State == record.Running && j.Epoch == t.Epoch }
