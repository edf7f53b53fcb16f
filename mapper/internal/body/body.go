package body

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// RangePath is the path, below the queue's URL, that range tasks are sent to.
const RangePath = "range"

// A Range is the body of a task: it names the range, and nothing of its
// contents.
type Range struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Range       string `json:"range"`
	Generation  int64  `json:"generation"`
}

// Ref returns the job that the task is of.
func (t Range) Ref() record.Ref { return record.Ref{ID: t.Job, Incarnation: t.Incarnation} }

// ParseRange reads the body of a task, which may be anybody's.
func ParseRange(body []byte) (Range, error) {
	var t Range
	if err := json.Unmarshal(body, &t); err != nil {
		return Range{}, err
	}
	if !record.ValidJobID(t.Job) || !record.ValidIncarnation(t.Incarnation) || !record.ValidRangeID(t.Range) ||
		t.Generation < 0 {
		return Range{}, errors.New("it names no job and range")
	}
	return t, nil
}

// TaskOf returns the task of a pending range. Its name is taken for a day after
// it is gone, so whoever wants another task needs another generation, of the
// range or of the job.
func TaskOf(r *record.Range, j *record.Job) tasks.Task {
	body, err := json.Marshal(Range{Job: r.Job, Incarnation: r.Incarnation, Range: r.ID, Generation: r.Generation})
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

// A Job is the body of a task that is about a job, and not about one range of
// it. Such tasks are chains: each does a bounded part, and enqueues the next.
type Job struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Tick        int64  `json:"tick,omitempty"`  // of a sweep
	After       string `json:"after,omitempty"` // the ID of the record behind which it goes on
	All         bool   `json:"all,omitempty"`   // a sweep of ranges of every age
	Guard       uint64 `json:"guard,omitempty"` // tells a sweep that is enqueued before a commit from all others
	Link        int64  `json:"link,omitempty"`  // of the tasks that add up records one after the other

	// Of the delivery, and not of the body:
	Queued  tasks.Delivery `json:"-"` // as the queue makes it
	BegunAt time.Time      `json:"-"` // when it came
}

// Task returns the task for a job and a path. Whoever enqueues it again uses the same
// name, so that there is one; a job that takes the ID of a deleted one has others.
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
	// Sweeps, and what goes on behind some records, are chains of any length.
	return tasks.Task{ID: tasks.ID(parts...), Path: path, Body: body, ScheduleTime: at, NewTrace: !at.IsZero() ||
		t.After != "" ||
		t.Link > 0}
}

// Current reports whether a task is of the job's epoch, and the job runs.
func (t Job) Current(j *record.Job) bool { return j.State == record.Running && j.Epoch == t.Epoch }
