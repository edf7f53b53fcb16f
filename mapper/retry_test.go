package mapper_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestLateReplay has a delivery of a retry be slow, while somebody pauses the job, or
// while another delivery opens the failures, and they are done: each is credited once.
func TestLateReplay(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(w *world, job *mapper.Job){
		"paused": func(w *world, job *mapper.Job) {
			if err := job.Pause(w.Context()); err != nil {
				w.Fatal(err)
			}
		},
		"done": func(w *world, job *mapper.Job) {
			if err := mapper.Reopen(w.Context(), w.engine, job.ID); err != nil {
				w.Fatal(err)
			}
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mended, quiet atomic.Bool
				m := mapper.Update("mended",
					func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
						if !mended.Load() && strings.HasSuffix(a.Key.Name, "77") {
							return mapper.Permanent(errors.New("no"))
						}
						a.Value.Balance += 10
						return nil
					})
				w := newWorld(t, setting{queue: few(4)}, m)
				inner := w.handler
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if quiet.Load() && !strings.HasSuffix(r.URL.Path, "/range") {
						rw.WriteHeader(http.StatusBadGateway)
						return
					}
					inner.ServeHTTP(rw, r)
				})
				keys := names(1000)
				w.putAccounts(keys)
				over(w, m, &mapper.StartOptions{ID: "j", PageSize: 100})
				mended.Store(true)
				quiet.Store(true) // the retry's own tasks come later
				job := w.engine.Job("j")
				if err := job.Retry(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				if err := mapper.LateRetry(t.Context(), w.engine, "j", func(failed []string) {
					if len(failed) != 10 {
						t.Errorf("%d failures", len(failed))
					}
					between(w, job)
				}); err != nil {
					t.Fatal(err)
				}
				quiet.Store(false)
				if w.status(job).State == mapper.StatePaused {
					if err := job.Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if s := w.wait(job); s.Processed != 1000 {
					t.Errorf("status %+v", s)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}
