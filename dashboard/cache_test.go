package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestWatchersCostOne lets fifty viewers watch a job for a minute, on pages that refresh every two
// seconds. Together they must cause no more calls of the database than one viewer.
func TestWatchersCostOne(t *testing.T) {
	testflag.Sequential(t)
	one, fifty := watched(t, 1), watched(t, 50)
	t.Logf("one costs %d calls, fifty %d", one, fifty)
	if one == 0 || fifty > one {
		t.Errorf("one who watches costs %d calls, and fifty cost %d", one, fifty)
	}
}

// BenchmarkWatchers measures how long many concurrent viewers wait for a job's page that is not in
// the cache, and counts the calls of the database.
func BenchmarkWatchers(b *testing.B) {
	w, _ := crowded(b, 20_000)
	for _, n := range []int{1, 50} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			before := w.calls()
			for b.Loop() {
				h := dashboard.NewHandler(w.engine, everybody)
				var group sync.WaitGroup
				for range n {
					group.Go(func() {
						rec := httptest.NewRecorder()
						if h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/job?id=many",
							nil)); rec.Code != http.StatusOK {
							b.Error(rec.Code)
						}
					})
				}
				group.Wait()
			}
			b.ReportMetric(float64(w.calls()-before)/float64(b.N), "calls/op")
		})
	}
}

// watched returns the number of calls of the database while n viewers watch a job for a minute.
func watched(t *testing.T, n int) (calls int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newEngine(t)
		w.putAccounts(t, 1000)
		w.slow.Store(int64(time.Second))
		job := w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
		time.Sleep(3 * time.Second)
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		h := dashboard.NewHandler(w.engine, everybody)
		const every = 2 * time.Second
		// the cache drops its data at multiples of this time
		time.Sleep(time.Until(time.Now().Truncate(every).Add(every)))
		before, end := w.calls(), time.Now().Add(time.Minute)
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 37 * time.Millisecond)
				for time.Now().Before(end) {
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/job?id=j", nil))
					if rec.Code != http.StatusOK {
						t.Errorf("%d %s", rec.Code, rec.Body)
					}
					time.Sleep(every)
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

// TestListCostsTheSame watches lists of running jobs for a minute. The dashboard reads the status
// of each job, but a list of a hundred jobs must cause about as many calls as one of twenty.
func TestListCostsTheSame(t *testing.T) {
	testflag.Sequential(t)
	twenty, hundred := listed(t, 20), listed(t, 100)
	t.Logf("a list of 20 jobs costs %d calls, of 100 %d", twenty, hundred)
	if twenty == 0 || hundred > twenty*12/10 {
		t.Errorf("a list of 20 jobs costs %d calls, and of 100 %d", twenty, hundred)
	}
}

// listed returns the number of calls of the database while a viewer watches a list of n paused jobs
// for a minute.
func listed(t *testing.T, n int) (calls int64) {
	synctest.Test(t, func(t *testing.T) {
		w := newEngine(t)
		w.refuses.Store(true)
		w.putAccounts(t, 20)
		for i := range n {
			job := w.start(t, "j"+strconv.Itoa(i), `{"Amount": 1}`, mapper.StartOptions{AllowOverlap: true})
			if err := job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		h := dashboard.NewHandler(w.engine, everybody)
		look := func() {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
			if strips := strings.Count(rec.Body.String(), `class="mini`); rec.Code != http.StatusOK || strips != n {
				t.Errorf("%d, %d strips of %d jobs", rec.Code, strips, n)
			}
			time.Sleep(2 * time.Second)
		}
		look()
		synctest.Wait()
		before := w.calls()
		for range 30 {
			look()
		}
		calls = w.calls() - before
		for i := range n {
			if err := w.engine.Job("j" + strconv.Itoa(i)).Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	return calls
}
