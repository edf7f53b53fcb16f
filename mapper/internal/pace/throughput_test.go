package pace

import (
	"testing"
	"time"
)

// TestEachOfJob has a process see a slow part of a job, and then samples of all of it.
func TestEachOfJob(t *testing.T) {
	var book Book[string]
	if each := book.Get("j").EachOfJob(); each != 0 {
		t.Errorf("%v of a job that nothing is known of", each)
	}
	book.Add("j", Throughput{Entities: 10, Spent: time.Second})
	for _, step := range []struct {
		entities int64 // of a sample
		ran      time.Duration
		want     time.Duration
	}{
		{0, 0, 100 * time.Millisecond},
		{100, time.Second, 10 * time.Millisecond},
		{100, 4 * time.Second, 30 * time.Millisecond}, // the one before counts half
	} {
		if step.entities > 0 {
			book.Sample("j", step.entities, step.ran)
		}
		known := book.Get("j")
		if each := known.EachOfJob(); each != step.want || known.Each() != 100*time.Millisecond {
			t.Errorf("%v of the job, %v here, want %v", each, known.Each(), step.want)
		}
	}
	if book.Get("other").EachOfJob() != 0 {
		t.Error("another job has its pace")
	}
}
