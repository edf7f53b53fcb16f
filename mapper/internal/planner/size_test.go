package planner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestSize checks the number of entities in a page at various rates of a job. Without a rate it is
// 100. The job has four workers, and a page may wait for 10 seconds.
func TestSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			mode   function.Mode
			change func(j *record.Job)
			known  bool // whether the process has measured time and writes per entity
			want   int
		}{
			{"no rate", function.Update, func(*record.Job) {}, false, 100},
			{"40 a second", function.Update, func(j *record.Job) { j.Rate = []byte(`{"entities":40}`) }, false, 40},
			{"0.5 a second: half of the wait", function.Update,
				func(j *record.Job) { j.Rate = []byte(`{"entities":0.5}`) }, false, 2},
			{"writes are limited: nobody knows how many an entity has", function.Update,
				func(j *record.Job) { j.Rate = []byte(`{"writes":1000}`) }, false, pace.FirstPaced},
			{"it is known", function.Update, func(j *record.Job) { j.Rate = []byte(`{"writes":1000}`) }, true, 100},
			{"a visit writes nothing", function.Visit, func(j *record.Job) { j.Rate = []byte(`{"writes":1000}`) },
				false, 100},
			{"a budget: nobody knows what an entity costs", function.Update,
				func(j *record.Job) { j.Budget = []byte(`{"dollars":1}`) }, false, pace.FirstPaced},
		} {
			job := &record.Job{ID: "j", Workers: 4, PageSize: 100, Created: time.Now()}
			c.change(job)
			p := &Planner{Paces: new(pace.Book[record.Ref]), Wait: 10 * time.Second, Mode: c.mode, job: job}
			if c.known {
				p.Paces.Add(job.Ref(), pace.Throughput{Entities: 10, Writes: 10, Bytes: 1000, Spent: time.Millisecond})
			}
			if got, err := p.pageSize(100); err != nil || got != c.want {
				t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
			}
		}
		broken := &Planner{job: &record.Job{ID: "j", Rate: []byte(`{`)}}
		if _, err := broken.pageSize(100); err == nil {
			t.Error("a rate that can't be read is none")
		}
	})
}
