package bench

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// BenchmarkEnd runs jobs with many ranges, each of one entity. It measures the work of adding up
// the ranges' records: at the end of the job, by Verify, and by Verify if one record is missing.
// The time and this process's CPU time are given for 100,000 ranges. The memory is the largest
// growth of the heap, measured in a second run. The emulators are another process on the same
// machine.
//
//	go test ./bench -run '^$' -bench End -benchtime 1x -timeout 1h
func BenchmarkEnd(b *testing.B) {
	for _, n := range []int{20_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newRealWorld(b, n)
			w.keys = nil
			var end, verify, problem measured
			w.front.Handler = end.tasks(w.front.Handler, "/finalize")
			for b.Loop() {
				var job *mapper.Job
				run := func() {
					w.jobs++
					var err error
					if job, err = look.Start(b.Context(), w.engine, mapper.Query{Kind: "Record"}, mapper.NoParams{},
						&mapper.StartOptions{
							ID: fmt.Sprint("job-", w.jobs), PageSize: 1, ExpectedWorkers: concurrent,
						}); err != nil {
						b.Fatal(err)
					}
					if s, err := job.Wait(b.Context()); err != nil || s.State != mapper.StateSucceeded ||
						s.Processed != int64(n) {
						b.Fatalf("%+v, %v", s, err)
					}
				}
				prove := func(problems bool) func() {
					return func() {
						if proof, err := job.Verify(b.Context(), nil); err != nil ||
							len(proof.Problems) > 0 != problems {
							b.Errorf("%+v, %v", proof, err)
						}
					}
				}
				run()
				verify.time(prove(false))
				end.weighs.Store(true)
				run()
				end.weighs.Store(false)
				verify.weigh(prove(false))
				w.loseRange(job)
				problem.time(prove(true))
				problem.weigh(prove(true))
			}
			for name, m := range map[string]*measured{"end": &end, "verify": &verify, "verify-problem": &problem} {
				b.ReportMetric(m.took.Seconds()*100_000/float64(n*b.N), name+"-s/100k")
				b.ReportMetric(m.cpu.Seconds()*100_000/float64(n*b.N), name+"-cpu-s/100k")
				b.ReportMetric(float64(m.held)/(1<<20), name+"-MiB")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A measured collects the time, CPU time and memory of calls. Only one call is measured at a time.
type measured struct {
	weighs atomic.Bool // whether to measure the memory of the next call, instead of its time

	took, cpu time.Duration
	held      uint64
}

func (m *measured) time(f func()) {
	begun, spent := time.Now(), processTime()
	f()
	m.took += time.Since(begun)
	m.cpu += processTime() - spent
}

func (m *measured) weigh(f func()) {
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m.held = max(m.held, heldMore(before.HeapAlloc, f))
}

// tasks returns a handler that measures the tasks which are delivered to a path.
func (m *measured) tasks(h http.Handler, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, path) {
			h.ServeHTTP(w, r)
			return
		}
		measure := m.time
		if m.weighs.Load() {
			measure = m.weigh
		}
		measure(func() { h.ServeHTTP(w, r) })
	})
}

// loseRange deletes the record of one of the job's ranges.
func (w *realWorld) loseRange(job *mapper.Job) {
	w.Helper()
	keys, err := w.client.GetAll(w.Context(), datastore.NewQuery("ScattermapRange").KeysOnly(), nil)
	lost := slices.IndexFunc(keys, func(k *datastore.Key) bool { return strings.Contains(k.Name, "."+job.ID+".") })
	if err == nil && lost >= 0 {
		err = w.client.Delete(w.Context(), keys[lost])
	}
	if err != nil || lost < 0 {
		w.Fatalf("%d keys, %v", len(keys), err)
	}
}
