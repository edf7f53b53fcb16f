package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestIdle checks how long a mapper's jobs have committed no page, after some minutes. The result
// -1 means that no job counts as running.
func TestIdle(t *testing.T) {
	began := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	job := func(state record.JobState, epoch int64) *record.Job {
		return &record.Job{ID: "j", Incarnation: "1", Mapper: "m", State: state, Epoch: epoch, Created: began}
	}
	other := &record.Job{ID: "k", Incarnation: "1", Mapper: "m", State: record.Running, Created: began}
	open := func(minutes int) []*record.Range { return []*record.Range{{Created: at(minutes)}, {Created: began}} }
	for _, c := range []struct {
		name string
		do   func(ob *Observer)
		now  int
		want int // in minutes
	}{
		{"nothing is known", func(*Observer) {}, 5, -1},
		{"it has started", func(ob *Observer) { ob.turned(job(record.Running, 1), at(0)) }, 2, 2},
		{"nobody has looked for long", func(ob *Observer) { ob.turned(job(record.Running, 1), at(0)) }, 4, -1},
		{"a look finds a range of late", func(ob *Observer) {
			ob.Looked(job(record.Running, 1), open(6), at(8))
		}, 9, 3},
		{"a look finds none: since its start", func(ob *Observer) {
			ob.Looked(job(record.Running, 1), nil, at(8))
		}, 9, 9},
		{"it was resumed since", func(ob *Observer) {
			j := job(record.Running, 1)
			j.RampFrom = at(7)
			ob.Looked(j, open(6), at(8))
		}, 9, 2},
		{"a page of this process is later", func(ob *Observer) {
			ob.progress.committed("j.1", "m", at(7))
			ob.Looked(job(record.Running, 1), open(6), at(8))
		}, 9, 2},
		{"of two jobs the longer one", func(ob *Observer) {
			ob.Looked(other, open(3), at(8))
			ob.Looked(job(record.Running, 1), open(6), at(8))
		}, 9, 6},
		{"it has ended", func(ob *Observer) {
			ob.turned(job(record.Running, 1), at(0))
			ob.turned(job(record.Succeeded, 1), at(1))
		}, 2, -1},
		{"a look that began before its end comes late", func(ob *Observer) {
			ob.turned(job(record.Paused, 2), at(1))
			ob.Looked(job(record.Running, 2), open(0), at(2))
		}, 2, -1},
		{"it goes on", func(ob *Observer) {
			ob.turned(job(record.Paused, 2), at(1))
			ob.turned(job(record.Running, 3), at(2))
		}, 4, 2},
	} {
		tel, err := New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.do(tel)
		idle, there := tel.progress.idle(at(c.now))["m"]
		if got := int(idle / time.Minute); !there && c.want >= 0 || there && got != c.want {
			t.Errorf("%s: idle for %v, %v, want %d minutes", c.name, idle, there, c.want)
		}
	}
}

// TestForgotten checks that jobs are dropped after an hour, and that the number of jobs is limited.
func TestForgotten(t *testing.T) {
	var p progress
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for i := range 50 {
		p.committed(fmt.Sprint("old", i), "m", now)
	}
	p.committed("new", "m", now.Add(forgotten))
	if len(p.jobs) != 51 {
		t.Errorf("after an hour %d are remembered", len(p.jobs))
	}
	p.committed("newer", "m", now.Add(forgotten+time.Minute))
	if len(p.jobs) != 2 {
		t.Errorf("after more than that %d are", len(p.jobs))
	}
	for i := range 3 * most {
		p.committed(fmt.Sprint(i), "m", now.Add(2*forgotten))
	}
	if len(p.jobs) > most {
		t.Errorf("of many %d are", len(p.jobs))
	}
}
