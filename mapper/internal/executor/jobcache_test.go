package executor

import (
	"fmt"
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below mapper/ must know its flags
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestJobCacheKeepsWhatIsInUse checks what a process drops from its cache after 5,000 jobs. It must
// keep jobs with deliveries under way, and at most 1,000 others. It must return the unspent budget
// of a dropped job.
func TestJobCacheKeepsWhatIsInUse(t *testing.T) {
	ref := func(i int) record.Ref { return record.Ref{ID: fmt.Sprint("job-", i), Incarnation: "i"} }
	forgotten := make(map[record.Ref]float64)
	c := &jobCache{forget: func(job record.Ref, r *cachedJob) { forgotten[job], _ = r.purse.takeAll() }}
	const busy = 1500
	places := make([]*cachedJob, busy)
	for i := range busy {
		places[i] = c.enter(ref(i))
		places[i].purse.left = float64(i)
	}
	if look, _ := c.leave(c.enter(ref(0)), true); look {
		t.Error("a delivery looks for completion beside another one")
	}
	const idle = 7777
	c.at(ref(idle)).purse.left = 0.5
	for i := busy; i < 5000; i++ {
		c.at(ref(i))
	}
	for i := range busy {
		if r := c.at(ref(i)); r != places[i] || r.purse.left != float64(i) || !c.inUse(ref(i)) {
			t.Fatalf("what is known of job %d is forgotten", i)
		}
	}
	if forgotten[ref(idle)] != 0.5 {
		t.Errorf("%v of the budget of a job that is forgotten is given back", forgotten[ref(idle)])
	}
	if look, last := c.leave(places[0], false); !look || !last {
		t.Error("the look for completion that is owed is forgotten")
	}
	for i := 1; i < busy; i++ {
		if look, last := c.leave(places[i], false); look || !last {
			t.Fatalf("job %d: looks %v, is the last %v", i, look, last)
		}
	}
	c.at(ref(9999))
	n := 0
	c.job.All(func(record.Ref, *cachedJob) { n++ })
	if n != maxCached || len(c.idle()) != n {
		t.Errorf("%d jobs are remembered, %d of them idle", n, len(c.idle()))
	}
}
