package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/mapper"
)

// much as one.
func TestWatchersCostOne(t *testing.T) {
	one, fifty := watched(t, 1), watched(t, 50)
	t.Logf("one costs %d calls, fifty %d", one, fifty)
	if one == 0 || float64(fifty) > 1.1*float64(one) {
		t.Errorf("one who watches costs %d calls, and fifty cost %d", one, fifty)
	}
}

// watched returns how many calls are made while so many watch a job for a minute.
func watched(t *testing.T, n int) (calls int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newEngine(t)
		w.putAccounts(t, 3000)
		w.slow.Store(int64(time.Second))
		job := w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
		time.Sleep(3 * time.Second)
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		h := dashboard.New(w.engine, everybody)
		before := w.calls()
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 37 * time.Millisecond)
				for range 30 {
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/job?id=j", nil))
					if rec.Code != http.StatusOK {
						t.Errorf("%d %s", rec.Code, rec.Body)
					}
					time.Sleep(2 * time.Second)
				}
			})
		}
		group.Wait()
		calls = w.calls() - before
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return calls
}

// TestKindsOfJobs shows jobs of all kinds: a rehearsal with what it would do, an undo with what it has left, one over several kinds and namespaces,
