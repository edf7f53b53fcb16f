package mapper_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestEveryTaskTwice delivers every task twice at the same time, and once more
// afterwards.
func TestEveryTaskTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		w.handler = repeat(w.engine.Handler())
		keys := names(3000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
		time.Sleep(time.Hour) // for what still runs
		w.wantBalances(keys, 10)
		if status.Counters["credited"] != 3000 || status.Processed != 3000 {
			t.Errorf("status %+v", status)
		}
	})
}

// repeat handles each request three times, the first two at once, and answers as
// the worst of them.
func repeat(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var answers [3]*httptest.ResponseRecorder
		one := func(i int) {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			answers[i] = httptest.NewRecorder()
			h.ServeHTTP(answers[i], again)
		}
		var wg sync.WaitGroup
		wg.Go(func() { one(0) })
		wg.Go(func() { one(1) })
		wg.Wait()
		one(2)
		worst := 0
		for _, a := range answers {
			worst = max(worst, a.Code)
		}
		rw.WriteHeader(worst)
	})
}

// lost returns faults that lose a share of the calls, before their effect and
// after it, once they are resumed.
func lost(seed uint64, share float64, methods ...string) *emulator.Faults {
	f := emulator.NewFaults(seed,
		emulator.Fault{Kind: emulator.LoseCall, Methods: methods, Share: share},
		emulator.Fault{Kind: emulator.LoseAnswer, Methods: methods, Share: share})
	f.Pause()
	return f
}

// checkLost checks that something was lost.
func checkLost(t *testing.T, f *emulator.Faults) {
	t.Helper()
	if n := f.Counts(); n[emulator.LoseCall] == 0 || n[emulator.LoseAnswer] == 0 {
		t.Errorf("faults injected: %v", n)
	}
}

// TestLostResponses runs jobs while calls of both services fail, before and
// after their effect.
func TestLostResponses(t *testing.T) {
	t.Parallel()
	seed := testflag.Seed(t)
	for i := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.3)
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(500)
			w.putAccounts(keys)
			job := w.start(10, &mapper.StartOptions{PageSize: 50})
			f.Resume()
			s := w.wait(job)
			f.Pause()
			checkLost(t, f)
			w.wantBalances(keys, 10)
			if s.Processed != 500 || s.Counters["credited"] != 500 {
				t.Errorf("status %+v", s)
			}
		})
	}
}
