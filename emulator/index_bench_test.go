package emulator_test

import (
	"context"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var indexed = flag.Int("indexed", 1000000, "how many entities the benchmark IndexBuild builds an index over")

// BenchmarkIndexBuild measures Gets of another kind with and without a build of an index over a
// million entities. It reports the 99th percentiles of both, and their ratio.
//
//	go test ./emulator -run '^$' -bench IndexBuild -benchtime 1x -timeout 1h
func BenchmarkIndexBuild(b *testing.B) {
	key := datastore.NameKey("Other", "x", nil)
	gets := func(ctx context.Context, client *datastore.Client) (all []time.Duration) {
		for ctx.Err() == nil {
			begun := time.Now()
			if err := client.Get(b.Context(), key, new(small)); err != nil {
				b.Error(err)
				return
			}
			all = append(all, time.Since(begun))
			time.Sleep(2 * time.Millisecond)
		}
		return all
	}
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100]) / 1e6
	}
	var with, without []time.Duration
	var building time.Duration
	shapes := []*datastore.Query{
		datastore.NewQuery("K").FilterField("Name", "=", "owner 7").Order("-N"),
		datastore.NewQuery("K").FilterField("N", "=", 7).Order("-Name"),
		datastore.NewQuery("K").Order("N").Order("-Name"),
	}
	for b.Loop() {
		client := benchClient(b)
		fill(b, client, "K", *indexed)
		if _, err := client.Put(b.Context(), key, new(small)); err != nil {
			b.Fatal(err)
		}
		for _, q := range shapes {
			for _, measure := range []*[]time.Duration{&without, &with} {
				ctx, end := context.WithCancel(b.Context())
				var group sync.WaitGroup
				group.Go(func() { *measure = append(*measure, gets(ctx, client)...) })
				begun := time.Now()
				if measure == &with {
					keys, err := client.GetAll(b.Context(), q.Limit(1).KeysOnly(), nil)
					// On a busy machine the first call may time out; the build continues.
					for status.Code(err) == codes.DeadlineExceeded {
						keys, err = client.GetAll(b.Context(), q.Limit(1).KeysOnly(), nil)
					}
					if err != nil || len(keys) != 1 {
						b.Fatalf("%d keys, %v", len(keys), err)
					}
					building += time.Since(begun)
				} else {
					time.Sleep(3 * time.Second)
				}
				end()
				group.Wait()
			}
		}
	}
	b.ReportMetric(building.Seconds()/float64(len(shapes)), "s/index")
	b.ReportMetric(p99(without), "p99-ms-without")
	b.ReportMetric(p99(with), "p99-ms-with")
	b.ReportMetric(float64(with[len(with)-1])/1e6, "longest-ms-with")
	b.ReportMetric(p99(with)/p99(without), "times-as-long")
}
