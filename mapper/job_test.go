package mapper_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/scattermap/scattermap/mapper"
)

// TestSizes runs jobs over kinds of every size around a page.
func TestSizes(t *testing.T) {
	for _, n := range []int{0, 1, 99, 100, 101, 250, 1000, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, addCredit)
				keys := names(n)
				w.putAccounts(keys)
				status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
				w.wantBalances(keys, 10)
				if status.Processed != int64(n) || status.Counters["credited"] != int64(n) || status.Open != 0 || status.Failures != 0 {
					t.Errorf("status %+v", status)
				}
				t.Logf("%d tasks, %d pages, depth %d, %d at once", status.Tasks, status.Pages, status.Depth, w.most.Load())
			})
		})
	}
}
