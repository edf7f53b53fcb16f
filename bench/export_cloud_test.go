package bench

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	kgzip "github.com/klauspost/compress/gzip"
	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// BenchmarkExportCloud compares an export with a loop that writes the same files. It runs in
// virtual time, with the latencies of Datastore, Cloud Tasks and a bucket. Export and loop have the
// same number of workers. The metric x-loop is the loop's time divided by the export's, which is
// from the call of Start until the manifest exists.
//
//	go test ./bench -run '^$' -bench ExportCloud -benchtime 1x -timeout 1h
func BenchmarkExportCloud(b *testing.B) {
	for _, n := range []int{20_000, 200_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var job, loop time.Duration
			for range b.N {
				if !inBubble(func(t *testing.T) { job, loop = exportInCloud(t, n, 10) }) {
					b.Fatal("the export failed")
				}
			}
			b.ReportMetric(loop.Seconds()/job.Seconds(), "x-loop")
			b.ReportMetric(job.Seconds(), "export-s")
			b.ReportMetric(loop.Seconds(), "loop-s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// exportInCloud returns the times of an export of n records and of the loop.
func exportInCloud(t *testing.T, n, workers int) (job, loop time.Duration) {
	s := newSlowBucket(func(name string) bool { return strings.HasSuffix(name, export.ManifestName) })
	bucket := s.Open()
	defer bucket.Close()
	x, err := export.New("export", bucket,
		func(_ context.Context, e *mapper.Entity[record], _ mapper.NoParams) (exported, error) {
			return exportedOf(e.Key, e.Value), nil
		}, &export.Options{Compression: export.Gzip})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, workers, emulator.Options{}, usualNetwork(), x.Mappers()...)
	keys := recordKeys(n)
	for first := 0; first < n; first += 500 {
		_, err := w.client.PutMulti(t.Context(), keys[first:first+500], make([]record, 500))
		w.must(err)
	}
	w.network.on.Store(true)
	begun := time.Now()
	group, ctx := errgroup.WithContext(t.Context())
	for i := range workers {
		part := keys[n*i/workers : n*(i+1)/workers]
		group.Go(func() error { return exportPartTo(ctx, w.client, part, bucket, fmt.Sprintf("%d.jsonl.gz", i)) })
	}
	w.must(group.Wait())
	loop = time.Since(begun)
	begun = time.Now()
	run, err := x.Start(t.Context(), w.processes[0], mapper.Query{Kind: "Record"}, mapper.NoParams{},
		&export.StartOptions{StartOptions: mapper.StartOptions{ExpectedWorkers: workers}})
	w.must(err)
	m, err := run.Wait(t.Context())
	w.must(err)
	if m.Records != int64(n) {
		t.Fatalf("%+v, want %d records", m, n)
	}
	for i, stage := range run.Jobs() {
		status, err := stage.Status(t.Context())
		w.must(err)
		t.Logf("stage %d: %.2f to %.2f s", i+1, status.Created.Sub(begun).Seconds(), status.Ended.Sub(begun).Seconds())
	}
	t.Logf("bucket: %v\n%v", s.calls, &w.calls)
	return s.written().Sub(begun), loop
}

// exportPartTo is the part of the loop that writes the records of the given keys to one blob.
func exportPartTo(
	ctx context.Context, client *datastore.Client, part []*datastore.Key, bucket *blob.Bucket, name string,
) error {
	f, err := bucket.NewWriter(ctx, name, nil)
	if err != nil {
		return err
	}
	z, err := kgzip.NewWriterLevel(f, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	if err := exportLines(ctx, client, part, json.NewEncoder(z)); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Close()
}
