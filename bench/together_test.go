package bench

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// addBatch is a mapper that adds one to each record of a batch.
var addBatch = mapper.UpdateBatches("add-batch", 100,
	func(_ context.Context, batch []*mapper.Entity[record], _ mapper.NoParams) error {
		for _, r := range batch {
			r.Value.Balance++
		}
		return nil
	})

// BenchmarkTogether runs jobs of an Update over 200,000 entities whose function takes no time. In a
// page, one call runs at a time, 50 calls run concurrently, or a call gets a batch of 100 entities.
// It reports this process's CPU time and allocations for each entity, and the largest heap of a
// further run with pages of 500, after a garbage collection. The emulators are another process on
// the same machine.
//
//	go test ./bench -run '^$' -bench Together -benchtime 3x
func BenchmarkTogether(b *testing.B) {
	const n = 200_000
	for _, way := range []struct {
		name   string
		m      *mapper.Mapper[mapper.NoParams]
		atOnce int
	}{{"1", addOne, 1}, {"50", addOne, 50}, {"batches", addBatch, 1}} {
		b.Run(way.name, func(b *testing.B) {
			w := newRealWorld(b, n, addBatch)
			w.atOnce, w.keys = way.atOnce, nil
			w.jobOver(way.m, n) // opens all connections before the measurement
			var used usage
			for b.Loop() {
				used.add(measure(func() time.Duration { return w.jobOver(way.m, n) }))
			}
			var held runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&held)
			most := heldMore(held.HeapAlloc, func() { w.jobOver(way.m, n) })
			all := float64(n * b.N)
			b.ReportMetric(all/used.took.Seconds(), "entities/s")
			b.ReportMetric(float64(used.cpu.Nanoseconds())/all/1000, "cpu-µs/entity")
			b.ReportMetric(float64(used.bytes)/all, "B/entity")
			b.ReportMetric(float64(used.times)/all, "allocs/entity")
			b.ReportMetric(float64(most)/(1<<20), "MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}
