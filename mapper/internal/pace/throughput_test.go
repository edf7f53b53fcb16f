package pace

import (
	"testing"
	"time"
)

// TestBook checks the measurements of two jobs.
func TestBook(t *testing.T) {
	var book Book[string]
	if known := book.Get("j"); known.Each() != 0 || known.Fit(1) || known.Chunk(1000) != firstRead ||
		known.In(1) != firstRead {
		t.Errorf("of a job that nothing is known of: %+v", known)
	}
	book.Expect("j", 1<<20)
	if known := book.Get("j"); !known.Fit(8) || known.Fit(9) || known.In(2<<20) != 2 || known.In(1) != 1 {
		t.Errorf("of entities that are said to have 1 MiB: %+v", known)
	}
	book.Add("j", Throughput{Entities: 10, Bytes: 990, Writes: 5, Others: 30, Spent: time.Second})
	book.Add("j", Throughput{Entities: 10, Bytes: 990, Writes: 5, Others: 10, Spent: 3 * time.Second})
	known := book.Get("j")
	if known.Each() != 200*time.Millisecond || known.In(1000) != 10 || book.Writes("j", 7) != 0.5 ||
		book.Others("j") != 2 {
		t.Errorf("of twenty entities: %+v", known)
	}
	for i := range maxJobs {
		book.Add(string(rune(1000+i)), Throughput{Entities: 1})
	}
	if book.Get("j") != (Throughput{}) {
		t.Error("a full book keeps a job, although it does not know that the job is in use")
	}
	if book.Get("other").Each() != 0 || book.Writes("other", 7) != 7 {
		t.Error("another job has its pace")
	}
}

// TestBookKeepsWhatIsInUse adds more jobs to a book than it can hold. Jobs in use must keep their
// measurements and their brakes.
func TestBookKeepsWhatIsInUse(t *testing.T) {
	b := Book[int]{InUse: func(job int) bool { return job < 5 }}
	brakes := make(map[int]*Brake)
	for job := range 3 * maxJobs {
		b.Add(job, Throughput{Entities: int64(job + 1)})
		brakes[job] = b.Brake(job)
	}
	for job, want := range map[int]bool{0: true, 4: true, 5: false, 2*maxJobs + 4: false, 2*maxJobs + 5: true,
		3*maxJobs - 1: true} {
		if got := b.Get(job).Entities == int64(job+1) && b.Brake(job) == brakes[job]; got != want {
			t.Errorf("job %d is known: %v, want %v", job, got, want)
		}
	}
}
