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

// A Range is the body of the HTTP request for a range's task. It names the range's record, and
// contains nothing of the record.
type Range struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Range       string `json:"range"`
	Generation  int64  `json:"generation"`
	Idle        bool   `json:"idle,omitempty"` // whether a worker was idle when the task was created
}

// Ref returns the ID and incarnation of the task's job.
func (t Range) Ref() record.Ref { return record.Ref{ID: t.Job, Incarnation: t.Incarnation} }

// ParseRange decodes and checks the body of a request for a range's task. It checks every field,
// because anybody may have sent the request.
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

// TaskOf returns the task of a pending range. Cloud Tasks does not accept the name of a task again
// until a day after the task is gone. So if a range needs another task, the generation of the range
// or the job must be raised first: it is part of the name.
func TaskOf(r *record.Range, j *record.Job) tasks.Task { return taskOf(r, j, false) }

// TaskForIdle returns the task of a pending range, for a worker that is idle. The task's body says
// so. Such a task need not wait for others, so its delivery shows how long the queue takes.
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

// A Job is the body of the HTTP request for a task about a whole job. Such tasks form chains: each
// does a limited part of the work, and then enqueues the next.
type Job struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Tick        int64  `json:"tick,omitempty"`  // the number of a sweep, from which the time when it is due follows
	After       string `json:"after,omitempty"` // the ID of the record after which the task continues
	All         bool   `json:"all,omitempty"`   // whether the sweep includes ranges that are younger than a minute
	// Guard is a random number if the task is a guard: a sweep that is enqueued before a commit, in
	// case the process dies after the commit. Otherwise it is 0.
	Guard uint64 `json:"guard,omitempty"`
	Link  int64  `json:"link,omitempty"` // the task's number in a chain of tasks that add up the job's records

	// The fields below describe the delivery. They are not part of the body.
	Queued  tasks.Delivery `json:"-"` // the queue's request
	BegunAt time.Time      `json:"-"` // when the queue's request arrived
}

// Task returns a task for the job j, with this body and the given URL path, due at the given time.
// The task's name depends only on these. So the queue accepts a task only once, even if it is
// enqueued twice. A later job with the same ID has other names.
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
	// Chains of sweeps, and of tasks that continue after a record, can be long. So each of these
	// tasks starts a trace of its own.
	return tasks.Task{ID: tasks.ID(parts...), Path: path, Body: body, ScheduleTime: at, NewTrace: !at.IsZero() ||
		t.After != "" ||
		t.Link > 0}
}

// Current reports whether the job is running, and still has the epoch of the task. Each change that
// makes ranges pending raises the epoch.
func (t Job) Current(j *record.Job) bool { return j.State == record.Running && j.Epoch == t.Epoch }
