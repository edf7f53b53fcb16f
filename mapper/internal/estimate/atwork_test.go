package estimate

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestAtWork checks for which pending ranges a task seems to work. A page of the job takes ten
// seconds, and after fifty seconds it has probably no delivery any more.
func TestAtWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l *Look, r *record.Range)
		want   bool
	}{
		{"its task is due, and a worker is free for it", func(*Look, *record.Range) {}, true},
		{"a task waits in the queue", func(l *Look, _ *record.Range) { l.Queue.Waits = true }, false},
		{"the queue delivers no task", func(l *Look, _ *record.Range) { l.Queue.Complaint = "403" }, false},
		{"there are more ranges than workers", func(l *Look, _ *record.Range) { l.Totals.Pending = 2 }, false},
		{"no page is done yet", func(l *Look, _ *record.Range) { l.Totals.Sample = record.NewSample() }, false},
		{"nothing is known about other ranges", func(l *Look, _ *record.Range) { l.Totals.Sample = nil }, false},
		{"no page was done for long", func(l *Look, _ *record.Range) { l.Now = noon.Add(50 * time.Second) }, false},
		{"its next attempt is due later", func(_ *Look, r *record.Range) { r.NotBefore = noon.Add(1) }, false},
		{"it is done", func(_ *Look, r *record.Range) { r.State = record.Done }, false},
		{"a delivery has continued with it", continued(time.Second), true},
		{"a delivery has continued with it, and has probably died", continued(51 * time.Second), false},
		{"a delivery has continued with it, and it has failed since", func(l *Look, r *record.Range) {
			continued(time.Second)(l, r)
			r.Generation = 1
		}, false},
		{"a delivery has continued with it, before the job was resumed", func(l *Look, r *record.Range) {
			continued(2*time.Second)(l, r)
			resumed(time.Second)(l, r)
		}, false},
		{"a delivery has left its mark, before the job was resumed", func(l *Look, r *record.Range) {
			marked(2*time.Second)(l, r)
			resumed(time.Second)(l, r)
		}, false},
		{"a delivery has left its mark", marked(time.Second), true},
		{"a delivery has left its mark, and has probably died", marked(51 * time.Second), false},
		{"a delivery has continued with it, and the job was paused", func(l *Look, r *record.Range) {
			continued(2*time.Second)(l, r)
			paused(time.Second)(l, r)
		}, false},
		{"the job was aborted", func(l *Look, r *record.Range) {
			continued(time.Second)(l, r)
			l.Job.State = record.Aborted
		}, false},
	} {
		r := open(10, true)
		l := lookAt(r, page(100, 2*time.Second))
		if c.change(&l, r); l.AtWork()(r) != c.want {
			t.Errorf("%s: want %v", c.name, c.want)
		}
	}
}

// continued says that a delivery has continued with the range some time ago. A task of another
// range waits in the queue.
func continued(ago time.Duration) func(*Look, *record.Range) {
	return func(l *Look, r *record.Range) {
		r.Continued, r.Created, l.Queue.Waits = true, noon.Add(-ago), true
	}
}

// marked says that a delivery has left its mark in the range's record some time ago. A task of
// another range waits in the queue.
func marked(ago time.Duration) func(*Look, *record.Range) {
	return func(l *Look, r *record.Range) {
		r.Begun, r.BegunAt, r.Created, l.Queue.Waits = "d", noon.Add(-ago), noon.Add(-time.Minute), true
	}
}

// resumed says that the job was paused and resumed some time ago.
func resumed(ago time.Duration) func(*Look, *record.Range) {
	return func(l *Look, r *record.Range) {
		paused(ago+time.Millisecond)(l, r)
		l.Job.State = record.Running
		l.Job.History = l.Job.History.With(record.Act{At: noon.Add(-ago), To: record.Running})
	}
}

// paused says that the job was paused some time ago.
func paused(ago time.Duration) func(*Look, *record.Range) {
	return func(l *Look, _ *record.Range) {
		l.Job.State = record.Paused
		l.Job.History = l.Job.History.With(record.Act{At: noon.Add(-ago), To: record.Paused})
	}
}
