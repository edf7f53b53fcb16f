package bench

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	kgzip "github.com/klauspost/compress/gzip"
	"gocloud.dev/blob/fileblob"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// An exported is a record of the export: a line of a file.
type exported struct {
	Key     string    `json:"key"`
	Balance int64     `json:"balance"`
	Owner   string    `json:"owner"`
	Email   string    `json:"email"`
	Created time.Time `json:"created"`
	Tags    []string  `json:"tags"`
}

func exportedOf(key *datastore.Key, r record) exported {
	return exported{key.Name, r.Balance, r.Owner, r.Email, r.Created, r.Tags}
}

// BenchmarkExport exports a kind to a folder, as JSON Lines compressed by gzip. It compares the
// export with a loop that a user would write by hand. The loop has the same number of goroutines.
// Each reads its part of the keys and writes a file, without any guarantee. The loop runs before
// and after the export. The metric x-loop is the loop's time divided by the export's, which is from
// the call of Start until the manifest exists. The metrics cpu-µs/entity are the CPU time of this
// process, which does not run the emulators. The metric heap-MiB is the largest growth of this
// process's live heap.
//
//	go test ./bench -run '^$' -bench 'Export$' -benchtime 1x -timeout 1h
func BenchmarkExport(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			bucket, err := fileblob.OpenBucket(dir,
				&fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
			if err != nil {
				b.Fatal(err)
			}
			defer bucket.Close()
			x, err := export.New("export", bucket,
				func(_ context.Context, e *mapper.Entity[record], _ mapper.NoParams) (exported, error) {
					return exportedOf(e.Key, e.Value), nil
				}, &export.Options{Compression: export.Gzip})
			if err != nil {
				b.Fatal(err)
			}
			w := newRealWorld(b, n, x.Mappers()...)
			var jobs, loops, jobsCPU, loopsCPU time.Duration
			peak := uint64(0)
			loop := func() {
				spent := processTime()
				loops += w.exportLoop(filepath.Join(dir, "by-hand")) / 2
				loopsCPU += (processTime() - spent) / 2
			}
			for b.Loop() {
				loop()
				w.keys = nil // live data would make the garbage collector run less often
				most := watchHeap()
				begun, spent := time.Now(), processTime()
				run, err := x.Start(b.Context(), w.engine, mapper.Query{Kind: "Record"}, mapper.NoParams{}, nil)
				if err != nil {
					b.Fatal(err)
				}
				m, err := run.Wait(b.Context())
				if err != nil || m.Records != int64(n) {
					b.Fatalf("%+v, %v", m, err)
				}
				jobs += time.Since(begun)
				jobsCPU += processTime() - spent
				peak = max(peak, most())
				w.keys = recordKeys(n)
				loop()
			}
			b.ReportMetric(loops.Seconds()/jobs.Seconds(), "x-loop")
			b.ReportMetric(jobs.Seconds()/float64(b.N), "export-s")
			b.ReportMetric(loops.Seconds()/float64(b.N), "loop-s")
			for name, spent := range map[string]time.Duration{"export": jobsCPU, "loop": loopsCPU} {
				b.ReportMetric(float64(spent.Nanoseconds())/float64(n*b.N)/1000, name+"-cpu-µs/entity")
			}
			b.ReportMetric(float64(peak)/(1<<20), "heap-MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// watchHeap watches the size of the live heap after each garbage collection. It returns a function
// that stops this, and returns the largest growth since the call of watchHeap.
func watchHeap() func() uint64 {
	live := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before, most := live(), uint64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-done:
				return
			case <-tick.C:
				most = max(most, live())
			}
		}
	}()
	return func() uint64 {
		close(done)
		<-ended
		return max(most, before) - before
	}
}

// exportLoop is the loop: it writes all records to files, without the package export.
func (w *realWorld) exportLoop(dir string) time.Duration {
	begun := time.Now()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	group, ctx := errgroup.WithContext(w.Context())
	for i := range concurrent {
		part := w.keys[len(w.keys)*i/concurrent : len(w.keys)*(i+1)/concurrent]
		group.Go(func() error { return w.exportPart(ctx, part, filepath.Join(dir, fmt.Sprintf("%d.jsonl.gz", i))) })
	}
	if err := group.Wait(); err != nil {
		w.Fatal(err)
	}
	return time.Since(begun)
}

func (w *realWorld) exportPart(ctx context.Context, part []*datastore.Key, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := kgzip.NewWriterLevel(f, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	if err := exportLines(ctx, w.client, part, json.NewEncoder(z)); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Close()
}

// exportLines writes the records of the given keys as lines of JSON, page by page.
func exportLines(ctx context.Context, client *datastore.Client, part []*datastore.Key, lines *json.Encoder) error {
	for len(part) > 0 {
		var records []record
		q := datastore.NewQuery("Record").Order("__key__").FilterField("__key__", ">=", part[0]).
			FilterField("__key__", "<=", part[len(part)-1]).Limit(500)
		keys, err := client.GetAll(ctx, q, &records)
		if err != nil {
			return err
		}
		for i, r := range records {
			if err := lines.Encode(exportedOf(keys[i], r)); err != nil {
				return err
			}
		}
		part = part[len(keys):]
	}
	return nil
}
