package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// TestSplittingExample prints where and when the ranges of a job are cut, for the example in
// docs/splitting.md. The function takes 2 ms for the first 15,000 of 20,000 entities, and 20 ms for
// the others.
func TestSplittingExample(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	const n, workers = 20_000, 4
	keys := pick(t, shapes, "sequential").keys(nil, n)
	items, times := make([]item, n), make([]time.Duration, n)
	for i := range items {
		if times[i] = base; i >= n*3/4 {
			times[i] = 10 * base
		}
		items[i].Cost = int64(times[i])
	}
	for _, s := range []mapper.Splitting{{}, {First: workers, FanOut: 1}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, workers)
			w.seed(keys, items)
			w.network.on.Store(true)
			begun := time.Now()
			job, err := updateItems.Start(t.Context(), w.processes[0], mapper.Query{Kind: kind}, mapper.NoParams{},
				&mapper.StartOptions{ID: "bench", ExpectedWorkers: workers, Splitting: s})
			w.must(err)
			status, _ := w.await(job)
			w.check(job, status, keys, items, false, true)
			if s == (mapper.Splitting{}) {
				t.Logf("\n%s", w.cuts(keys, begun))
			}
			t.Logf("%+v: %.1f s; ideal: %.1f s", s, status.Ended.Sub(begun).Seconds(),
				ideal(times, *pageSize, workers).Seconds())
		})
	}
}

// A storedRange is a range, read from its record. Its start is the index of the range's first key
// among all keys.
type storedRange struct {
	start     int
	created   time.Time
	continued bool
}

// cuts returns a line for each commit that has cut a range. The line has the time, the number of
// entities that the task keeps and where they start, and the number of entities in each new range.
func (w *world) cuts(keys []*datastore.Key, begun time.Time) string {
	var records []datastore.PropertyList
	_, err := w.client.GetAll(w.Context(), datastore.NewQuery("ScattermapRange"), &records)
	w.must(err)
	ranges := make([]storedRange, 0, len(records))
	for _, properties := range records {
		var r storedRange
		for _, p := range properties {
			switch p.Name {
			case "start":
				for _, part := range p.Value.(*datastore.Entity).Properties {
					if key, ok := part.Value.(*datastore.Key); ok {
						r.start = slices.IndexFunc(keys, key.Equal)
					}
				}
			case "created":
				r.created = p.Value.(time.Time)
			case "continued":
				r.continued = p.Value.(bool)
			}
		}
		ranges = append(ranges, r)
	}
	slices.SortFunc(ranges, func(a, b storedRange) int {
		return a.created.Compare(b.created)*len(keys)*2 + a.start - b.start
	})
	bounds := []int{0, len(keys)}
	var text strings.Builder
	for len(ranges) > 0 {
		n := slices.IndexFunc(ranges, func(r storedRange) bool { return !r.created.Equal(ranges[0].created) })
		if n < 0 {
			n = len(ranges)
		}
		text.WriteString(cutsAt(ranges[:n], &bounds, begun))
		ranges = ranges[n:]
	}
	return text.String()
}

// cutsAt returns the lines for the ranges that were recorded at one time. It adds the starts of
// these ranges to bounds.
func cutsAt(ranges []storedRange, bounds *[]int, begun time.Time) string {
	next := func(bounds []int, start int) int {
		i, _ := slices.BinarySearch(bounds, start+1)
		return bounds[i]
	}
	before := slices.Clone(*bounds)
	rest := make(map[int]int)      // by the end of the range that was cut: where its task continues
	started := make(map[int][]int) // by the same end: where the new ranges start
	for _, r := range ranges {
		end := next(before, r.start)
		switch {
		case r.continued:
			rest[end] = r.start
		case !slices.Contains(before, r.start):
			started[end] = append(started[end], r.start)
			*bounds = append(*bounds, r.start)
		}
	}
	slices.Sort(*bounds)
	var text strings.Builder
	for _, end := range before {
		starts := started[end]
		if len(starts) == 0 {
			continue
		}
		fmt.Fprintf(&text, "%6.2f s: keeps %4d from %5d on; new:", ranges[0].created.Sub(begun).Seconds(),
			starts[0]-rest[end], rest[end])
		for _, start := range starts {
			fmt.Fprintf(&text, " %d", next(*bounds, start)-start)
		}
		text.WriteString("\n")
	}
	return text.String()
}
