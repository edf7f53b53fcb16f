package bench

import (
	"slices"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/nightly"
)

// TestCost prints what Google would bill for a million entities, by strategy. It runs a job over
// fewer entities (flag -entities), and multiplies the operations that the emulators have counted.
// Only the offset strategy grows faster than the number of entities: each page reads all entities
// before it once more, on average half of all.
//
//	go test ./bench -run TestCost -v -args -entities 200000
func TestCost(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	n := *entities
	if n == 0 {
		n = 20_000
		if !nightly.Is() {
			n = 10_000
		}
	}
	t.Logf("%d entities, for a million:\n%-13s  %10s  %10s  %10s  %8s  %8s", n, "strategy", "reads", "writes",
		"small ops", "task ops", "dollars")
	used := make(map[string]billing.Usage)
	report := func(name string, u billing.Usage) {
		if used[name] = u; name == "offset" {
			u.Reads += (u.Reads - int64(n)) * (1_000_000/int64(n) - 1)
		}
		scale := 1_000_000 / float64(n)
		dollars := billing.NAM5.Dollars(u) * scale
		scaled := func(n int64) int64 { return int64(float64(n) * scale) }
		t.Logf("%-13s  %10d  %10d  %10d  %8d  %8.2f", name, scaled(u.Reads), scaled(u.Writes), scaled(u.SmallOps),
			scaled(u.TaskOps), dollars)
	}
	sequential, uniform := pick(t, shapes, "sequential"), pick(t, costs, "uniform")
	some := chosen(t, *strategyFlag, strategies)
	if *strategyFlag == "" && *entities == 0 && !nightly.Is() {
		t.Log("left out: .ci/nightly runs other strategies")
		some = []strategy{pick(t, strategies, "adaptive")}
	}
	for _, st := range some {
		t.Run(st.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				report(st.name, makespan(t, *modeFlag, sequential, uniform, filters[0], st, 100, n).used)
			})
		})
	}
	t.Run("loops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			keys := sequential.keys(nil, n)
			for i := range keys {
				keys[i].Kind = "Plain"
			}
			for part := range slices.Chunk(keys, 500) {
				_, err := w.client.PutMulti(t.Context(), part, make([]item, len(part)))
				w.must(err)
			}
			report("loop", w.used(func() { w.loop(n, false) }))
			report("offset", w.used(func() { w.loop(n, true) }))
		})
	})
	if *strategyFlag != "" {
		return
	}
	adaptive, loop := billing.NAM5.Dollars(used["adaptive"]), billing.NAM5.Dollars(used["loop"])
	most := 1.1
	if n < 200_000 { // in a small job, the keys that a start reads to find boundaries count for more
		most = 1.25
	}
	if adaptive > most*loop {
		t.Errorf("adaptive costs %.4f dollars, a loop without tasks and records %.4f", adaptive, loop)
	}
	if used["offset"].Reads < 5*used["adaptive"].Reads {
		t.Errorf("by offset %d reads, adaptive %d", used["offset"].Reads, used["adaptive"].Reads)
	}
}

func (w *world) used(do func()) billing.Usage {
	before := w.emulator.Usage()
	do()
	return w.emulator.Usage().Sub(before)
}

// loop changes all entities like a program written by hand, page after page and without tasks. Each
// page's query starts after the last key of the page before, or, if offset is set, at an offset.
func (w *world) loop(n int, offset bool) {
	var last *datastore.Key
	for first := 0; first < n; {
		q := datastore.NewQuery("Plain").Order("__key__").Limit(*pageSize)
		switch {
		case offset:
			q = q.Offset(first)
		case last != nil:
			q = q.FilterField("__key__", ">", last)
		}
		var items []item
		keys, err := w.client.GetAll(w.Context(), q, &items)
		w.must(err)
		if len(keys) == 0 {
			w.Fatalf("%d of %d entities", first, n)
		}
		for i := range items {
			items[i].Done++
		}
		_, err = w.client.PutMulti(w.Context(), keys, items)
		w.must(err)
		first, last = first+len(keys), keys[len(keys)-1]
	}
}
