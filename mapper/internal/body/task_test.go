package body

import (
	"bytes"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// jobOf returns the records of a job and of its first range.
func jobOf(id string) (*record.Job, *record.Range) {
	job := &record.Job{ID: id, State: record.Running, Generation: 2, Epoch: 3}
	job.Incarnate(7)
	return job, job.RootRange()
}

// TestTaskOf checks that a range's task gets another name if the generation of the range or of its
// job changes. Otherwise the name must stay the same, so that the queue accepts the task only once.
func TestTaskOf(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	job, r := jobOf("j")
	first := TaskOf(r, job)
	if first.Path != RangePath || !first.ScheduleTime.IsZero() {
		t.Errorf("%+v", first)
	}
	for _, c := range []struct {
		name   string
		change func(j *record.Job, r *record.Range)
		same   bool // task
	}{
		{"nothing", func(*record.Job, *record.Range) {}, true},
		{"what the range has done", func(_ *record.Job, r *record.Range) { r.Processed = 7 }, true},
		{"the job's epoch", func(j *record.Job, _ *record.Range) { j.Epoch++ }, true},
		{"the job's generation", func(j *record.Job, _ *record.Range) { j.Generation++ }, false},
		{"the range's generation", func(_ *record.Job, r *record.Range) { r.Generation++ }, false},
		{"the range", func(_ *record.Job, r *record.Range) { r.ID = record.RangeID(r.ID, 0) }, false},
		{"the incarnation", func(_ *record.Job, r *record.Range) { r.Incarnation = "other" }, false},
	} {
		job, r := jobOf("j")
		c.change(job, r)
		if got := TaskOf(r, job); (got.ID == first.ID) != c.same {
			t.Errorf("%s: %q after %q", c.name, got.ID, first.ID)
		}
	}
	r.NotBefore = noon
	if at := TaskOf(r, job).ScheduleTime; !at.Equal(noon) {
		t.Errorf("the task of a range that waits is due at %v", at)
	}
	parsed, err := ParseRange(first.Body)
	if want := (Range{job.ID, job.Incarnation, r.ID, 0, false}); err != nil || parsed != want ||
		parsed.Ref() != job.Ref() {
		t.Errorf("%+v, %v, want %+v", parsed, err, want)
	}
}

// TestTaskForIdle checks that the task for an idle worker has the same name as the range's usual
// task.
func TestTaskForIdle(t *testing.T) {
	job, r := jobOf("j")
	first, idle := TaskOf(r, job), TaskForIdle(r, job)
	parsed, err := ParseRange(idle.Body)
	if want := (Range{job.ID, job.Incarnation, r.ID, 0, true}); err != nil || parsed != want || idle.ID != first.ID {
		t.Errorf("%+v, %v, want %+v; %q, want %q", parsed, err, want, idle.ID, first.ID)
	}
}

// TestJobTask checks which arguments change the name of a task for a whole job.
func TestJobTask(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		body  Job
		at    time.Time
		path  string
		trace bool // whether the task starts a trace of its own
	}{
		{name: "an end", path: "complete"},
		{name: "a sweep", path: "sweep", body: Job{Tick: 1}, at: noon, trace: true},
		{name: "the next sweep", path: "sweep", body: Job{Tick: 2}, at: noon, trace: true},
		{name: "a sweep that goes on", path: "sweep", body: Job{Tick: 1, After: "a"}, trace: true},
		{name: "a guard", path: "sweep", body: Job{Tick: 1, Guard: 5}, at: noon, trace: true},
		{name: "another guard", path: "sweep", body: Job{Tick: 1, Guard: 6}, at: noon, trace: true},
		{name: "the second link", path: "complete", body: Job{Link: 2}, trace: true},
	} {
		job, _ := jobOf("j")
		task := c.body.Task(job, c.path, c.at)
		if task.Path != c.path || !task.ScheduleTime.Equal(c.at) || task.NewTrace != c.trace {
			t.Errorf("%s: %+v", c.name, task)
		}
		if again := c.body.Task(job, c.path, c.at.Add(time.Hour)); again.ID != task.ID || !bytes.Equal(again.Body,
			task.Body) {
			t.Errorf("%s: a second call returns another task: %+v", c.name, again)
		}
		for what, change := range map[string]func(){
			"epoch":       func() { job.Epoch++ },
			"generation":  func() { job.Generation++ },
			"incarnation": func() { job.Incarnate(8) },
		} {
			was := c.body.Task(job, c.path, c.at).ID
			if change(); c.body.Task(job, c.path, c.at).ID == was {
				t.Errorf("%s: with another %s the task has the same name", c.name, what)
			}
		}
	}
	seen := make(map[string]Job)
	job, _ := jobOf("j")
	for _, b := range []Job{{}, {Tick: 1}, {Tick: 2}, {After: "1"}, {After: "2"}, {Guard: 1}, {Guard: 2}, {Link: 1},
		{Link: 2}, {Tick: 1, Link: 1}} {
		id := b.Task(job, "sweep", time.Time{}).ID
		if other, there := seen[id]; there {
			t.Errorf("%+v and %+v have the same name", b, other)
		}
		seen[id] = b
	}
}

// TestCurrent checks that a task is current only while its job runs in the task's epoch.
func TestCurrent(t *testing.T) {
	for _, c := range []struct {
		state record.JobState
		epoch int64
		want  bool
	}{
		{record.Running, 3, true}, {record.Running, 2, false}, {record.Running, 4, false}, {record.Paused, 3, false},
		{record.Succeeded, 3, false},
	} {
		job, _ := jobOf("j")
		job.State = c.state
		if got := (Job{Epoch: c.epoch}).Current(job); got != c.want {
			t.Errorf("a task of epoch %d, and a job that is %s in 3: %v", c.epoch, c.state, got)
		}
	}
}
