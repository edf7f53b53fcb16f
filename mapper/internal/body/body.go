package body

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// RangePath is the URL path of requests for range tasks, below the queue's URL.
const RangePath = "range"

// A Range is the body of the HTTP request for a task that works on a range, a part of a job's
// query. It names the range's record, and has no data of the record.
type Range struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Range       string `json:"range"`
	Generation  int64  `json:"generation"`
	Idle        bool   `json:"idle,omitempty"` // whether a worker was idle when the task was created
}

// Ref returns the ID and incarnation of the task's job.
func (t Range) Ref() record.Ref { return record.Ref{ID: t.Job, Incarnation: t.Incarnation} }

// ParseRange decodes the JSON body of a request for a range's task, and returns an error if a field
// is invalid. Every field is checked, because the request may not come from the queue.
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

// TaskOf returns the task that processes a pending range, ready to be enqueued. The task's name
// contains the generations of the range and the job. Cloud Tasks refuses a name for up to a day
// after its task has ended. So a caller that needs another task for the range raises a generation
// first.
func TaskOf(r *record.Range, j *record.Job) tasks.Task { return taskOf(r, j, false) }

// TaskForIdle returns the same task as TaskOf, for a range that was cut off for an idle worker.
// Only the field Idle of its body differs. An idle worker takes the task at once. So the time until
// its delivery shows how long the queue itself takes.
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

// A Job is the body of the HTTP request for a task about a whole job, such as a sweep, which looks
// for ranges without a task. Such tasks form chains: each task does a limited part of the work, and
// then enqueues the next one.
type Job struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	// Tick is the number of a sweep. Sweeps run at fixed times, so Tick also tells when the sweep
	// is due.
	Tick int64 `json:"tick,omitempty"`
	// After is the ID of a record, if the task continues the work of an earlier task: it starts
	// after this record.
	After string `json:"after,omitempty"`
	// All tells a sweep to check all pending ranges. Otherwise it skips ranges younger than a
	// minute.
	All bool `json:"all,omitempty"`
	// Guard is 0 except in a guard, where it is a random number. A guard is a sweep that is
	// enqueued before a commit, in case the process dies after the commit.
	Guard uint64 `json:"guard,omitempty"`
	// Link is the task's number in its chain, if the tasks of the chain add up the job's records.
	Link int64 `json:"link,omitempty"`

	// The fields below describe the delivery. They are not part of the body.
	Queued  tasks.Delivery `json:"-"` // the queue's request
	BegunAt time.Time      `json:"-"` // when the queue's request arrived
}

// Task returns a task for the job j with this body, the given URL path and the given due time. The
// task's name depends only on these four. So the queue accepts the task only once, even if it is
// enqueued twice. A later job with the same ID gets other names.
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
	// A chain of sweeps, or of tasks that continue at a record, can be long. So each of these tasks
	// starts a trace of its own.
	return tasks.Task{ID: tasks.ID(parts...), Path: path, Body: body, ScheduleTime: at, NewTrace: !at.IsZero() ||
		t.After != "" ||
		t.Link > 0}
}

// Current reports whether the job is running and still has the task's epoch. Otherwise the task is
// outdated: each change that makes ranges pending gives the job a new epoch.
func (t Job) Current(j *record.Job) bool { return j.State == record.Running && j.Epoch == t.Epoch }
