package terraform_test

import (
	"fmt"
	"testing"

	"github.com/scattermap/scattermap/tasks"
)

// TestQueueLeavesRoom checks that the module's queues deliver as many tasks at once as
// tasks.Queue.Create would choose.
func TestQueueLeavesRoom(t *testing.T) {
	for _, c := range []struct {
		instances, concurrency, queues int
		want                           int // the expected max-concurrent-dispatches of each queue
	}{
		{1, 1, 1, 1}, {1, 2, 1, 1}, {1, 10, 1, 9}, {1, 11, 1, 9}, {10, 20, 1, 180}, {10, 20, 3, 60}, {5, 8, 2, 18},
		{1000, 1000, 2, 5000},
	} {
		names := `["a"`
		for i := 1; i < c.queues; i++ {
			names += fmt.Sprintf(", %q", string(rune('a'+i)))
		}
		p := planOf(
			t,
			map[string]string{
				"instances":   fmt.Sprint(c.instances),
				"concurrency": fmt.Sprint(c.concurrency),
				"queues":      names + "]",
			},
		)
		for _, q := range p.instances["google_cloud_tasks_queue"] {
			if n := number(at(q, "rate_limits", 0, "max_concurrent_dispatches")); n != c.want {
				t.Errorf("%+v: %d tasks at once", c, n)
			}
		}
		service := tasks.ServiceLimits{MaxInstances: c.instances, Concurrency: c.concurrency, Queues: c.queues}
		if n := max(1, min(5000, service.ForTasks()/c.queues)); n != c.want {
			t.Errorf("%+v: package tasks would have %d", c, n)
		}
		if len(p.instances["google_cloud_tasks_queue"]) != c.queues || len(p.refused) > 0 {
			t.Errorf("%+v: %d queues, refused %q", c, len(p.instances["google_cloud_tasks_queue"]), p.refused)
		}
	}
}
