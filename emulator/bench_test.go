package emulator_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
)

type small struct {
	N    int
	Name string
}

// fill puts n small entities, 500 per commit, and returns how long this took.
func fill(b *testing.B, client *datastore.Client, kind string, n int) time.Duration {
	b.Helper()
	begun := time.Now()
	var group errgroup.Group
	group.SetLimit(4)
	for first := 0; first < n; first += 500 {
		group.Go(func() error {
			var keys []*datastore.Key
			var entities []small
			for i := first; i < min(first+500, n); i++ {
				keys = append(keys, datastore.NameKey(kind, fmt.Sprintf("user-%08d", i), nil))
				entities = append(entities, small{N: i, Name: fmt.Sprint("owner ", i)})
			}
			_, err := client.PutMulti(b.Context(), keys, entities)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// readKind reads all entities of a kind, and returns how long this took.
func readKind(b *testing.B, client *datastore.Client, kind string, n int) time.Duration {
	b.Helper()
	begun := time.Now()
	var all []small
	if _, err := client.GetAll(b.Context(), datastore.NewQuery(kind), &all); err != nil || len(all) != n {
		b.Fatalf("%d entities, %v", len(all), err)
	}
	return time.Since(begun)
}

// BenchmarkAgainstGoogle writes and reads the same entities in the embedded
// Datastore and in Google's emulators, and reports how many times as fast the
// embedded one is.
//
//	go test ./emulator -run '^$' -bench AgainstGoogle -benchtime 1x
func BenchmarkAgainstGoogle(b *testing.B) {
	const n = 10000
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		b.Run(string(p), func(b *testing.B) {
			theirs := googletest.Client(b, p)
			ours, err := emulator.ForTest(b,
				&emulator.Options{DatastoreAddr: "127.0.0.1:0"}).DatastoreClient(b.Context(),
				"bench")
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { ours.Close() })
			for b.Loop() {
				kind := fmt.Sprint("K", time.Now().UnixNano())
				fill(b, theirs, kind+"warm", 1000)
				fill(b, ours, kind+"warm", 1000)
				b.ReportMetric(float64(fill(b, theirs, kind, n))/float64(fill(b, ours, kind, n)),
					"times-as-fast-commits-of-500")
				b.ReportMetric(float64(readKind(b, theirs, kind, n))/float64(readKind(b, ours, kind, n)),
					"times-as-fast-reads")
			}
		})
	}
}

// BenchmarkRead reads entities of the embedded Datastore.
func BenchmarkRead(b *testing.B) {
	const n = 20000
	client := benchClient(b)
	fill(b, client, "K", n)
	for b.Loop() {
		readKind(b, client, "K", n)
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entities/s")
}

// BenchmarkWrite commits entities to the embedded Datastore, 500 at a time.
func BenchmarkWrite(b *testing.B) {
	const n = 20000
	client := benchClient(b)
	for b.Loop() {
		fill(b, client, "K", n)
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entities/s")
}

func benchClient(b *testing.B) *datastore.Client {
	b.Helper()
	client, err := emulator.ForTest(b, nil).DatastoreClient(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	return client
}

// BenchmarkPageInALargeKind reads pages by key range in a small kind and in a large kind. It
// reports the ratio of their times. The ratio is small, because a read searches a tree and does not
// scan the kind.
func BenchmarkPageInALargeKind(b *testing.B) {
	client := benchClient(b)
	sizes := map[string]int{"Small": 2000, "Large": 200000}
	for kind, n := range sizes {
		fill(b, client, kind, n)
	}
	page := func(kind string, i int) time.Duration {
		from := datastore.NameKey(kind, fmt.Sprintf("user-%08d", i), nil)
		begun := time.Now()
		keys, err := client.GetAll(b.Context(), datastore.NewQuery(kind).FilterField("__key__", ">=",
			from).Limit(100).KeysOnly(), nil)
		if err != nil || len(keys) != 100 {
			b.Fatalf("%d keys, %v", len(keys), err)
		}
		return time.Since(begun)
	}
	times := make(map[string][]time.Duration)
	for b.Loop() {
		for kind, n := range sizes {
			for i := range 20 {
				times[kind] = append(times[kind], page(kind, (n-100)*i/20))
			}
		}
	}
	median := func(kind string) float64 {
		slices.Sort(times[kind])
		return float64(times[kind][len(times[kind])/2])
	}
	b.ReportMetric(median("Large")/median("Small"), "times-as-long")
}

// BenchmarkSteadyUpdates updates one indexed entity repeatedly. Its versions of the last hour stay
// in memory, but updates must not become slower.
func BenchmarkSteadyUpdates(b *testing.B) {
	client := benchClient(b)
	key := datastore.NameKey("K", "counter", nil)
	if _, err := client.Count(b.Context(), datastore.NewQuery("K").FilterField("Name", "=",
		"x").Order("N")); err != nil {
		b.Fatal(err) // the query makes the emulator build the index, which each update then changes
	}
	n := 0
	for b.Loop() {
		n++
		if _, err := client.Put(b.Context(), key, &small{N: n}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory puts a million small entities, and reports the memory that they take.
//
//	go test ./emulator -run '^$' -bench Memory -benchtime 1x
func BenchmarkMemory(b *testing.B) {
	const n = 1000000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		client := benchClient(b)
		before := heap()
		fill(b, client, "K", n)
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB/million-entities")
	}
}
