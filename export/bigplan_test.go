package export

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type numbered struct{ N int64 }

func define(t *testing.T, o Options) *Export[mapper.NoParams] {
	t.Helper()
	x, err := New("numbers", testbucket.New().Open(),
		func(_ context.Context, e *mapper.Entity[numbered], _ mapper.NoParams) (numbered, error) {
			return e.Value, nil
		}, &o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestPlannedFiles assigns parts to files, with sizes and numbers of parts up to their limits. If
// there are more than 100,000 parts, their records must not be read.
func TestPlannedFiles(t *testing.T) {
	none := define(t, Options{})
	mappertest.Run(t, none.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		s := stage{Export: "e", Run: runA, Folder: "f", Layout: layoutRuns}
		var keys []*datastore.Key
		var parts []part
		for i := range 4 {
			keys = append(keys, datastore.NameKey(partKind, entityName(runA, fmt.Sprintf("%d", i)), nil))
			parts = append(parts, part{Records: 10, Bytes: 100})
		}
		if _, err := w.Client.PutMulti(t.Context(), keys, parts); err != nil {
			t.Fatal(err)
		}
		longEnd := func(f File) (head, tail string) {
			if f.Index == f.Of-1 {
				return "", strings.Repeat("x", 50)
			}
			return fmt.Sprint(f.Index % f.Of), ""
		}
		wrapped := func(most int64) Options { return Options{Format: JSON, Wrap: longEnd, FileBytes: most} }
		counted := func(parts, bytes int64) map[string]int64 {
			return map[string]int64{partsCounter: parts, bytesCounter: bytes}
		}
		for name, c := range map[string]struct {
			o        Options
			files    int
			counters map[string]int64
			want     string // number of files, or a part of the error
		}{
			"one of the largest size": {Options{FileBytes: 400}, 1, counted(4, 400), "1"},
			"one byte too large":      {Options{FileBytes: 399}, 1, counted(4, 400), "would have 400 bytes"},
			"two":                     {Options{FileBytes: 200}, 2, counted(4, 400), "2"},
			"as many as allowed":      {Options{FileBytes: 200, MaxFiles: 4}, 0, counted(4, 400), "4"},
			"more than allowed": {Options{FileBytes: 200, MaxFiles: 3}, 0, counted(4, 400),
				"Options.MaxFiles is 3"},
			"the last is longer":              {wrapped(152), 0, counted(4, 400), "8"},
			"the last is empty":               {wrapped(151), 0, counted(4, 400), "9"},
			"two, the last is longer":         {wrapped(254), 2, counted(4, 400), "2"},
			"two, the last is too long":       {wrapped(253), 2, counted(4, 400), "would have 254 bytes"},
			"three, the last has fewer parts": {wrapped(205), 3, counted(4, 400), "3"},
			"fewer counted":                   {Options{}, 0, counted(3, 300), "there are 4 parts, and 3 were counted"},
			"more counted":                    {Options{}, 0, counted(5, 500), "there are 4 parts, and 5 were counted"},
			"all are read": {Options{}, 0, counted(exactParts, 1),
				"there are 4 parts, and 100000 were counted"},
			"too many to read":         {Options{FileBytes: 1000}, 0, counted(exactParts+1, 9000), "10"},
			"too many, in given files": {Options{}, 7, counted(exactParts+1, 9000), "7"},
			"too many files": {Options{FileBytes: 1000, MaxFiles: 9}, 0, counted(exactParts+1, 9000),
				"Options.MaxFiles is 9"},
		} {
			x := define(t, c.o)
			s := s
			s.Files = c.files
			all, err := x.stretches(t.Context(), w.Client, s, c.counters)
			if err == nil && fmt.Sprint(len(all)) != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %d files, %v, want %s", name, len(all), err, c.want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if all, err := none.stretches(ctx, w.Client, s, counted(4, 400)); err == nil {
			t.Errorf("the parts can't be read, and %d files are planned", len(all))
		}
		if proof, err := coverage(w.WithEngine(ctx), stage{Export: "e", Parts: exactParts}); err == nil {
			t.Errorf("%+v, and the records can't be read", proof)
		}
		if proof, err := coverage(w.WithEngine(t.Context()), stage{Export: "e", Parts: exactParts + 1}); err != nil ||
			proof != nil {
			t.Errorf("%+v, %v for an export of more parts than are read", proof, err)
		}
	})
}

// TestMostFiles checks that an export plans up to as many files as its options allow, and otherwise
// fails.
func TestMostFiles(t *testing.T) {
	x := define(t, Options{MaxFiles: 3})
	if err := x.checkFiles(3); err != nil {
		t.Errorf("as many: %v", err)
	}
	if err := x.checkFiles(4); err == nil || !strings.Contains(err.Error(), "would have to be 4 files") {
		t.Errorf("one more: %v", err)
	}
}

// TestPutFiles records more files than one transaction takes. After the next stage has started, no
// further files may be recorded.
func TestPutFiles(t *testing.T) {
	x := define(t, Options{})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		const n = 1000
		put := func(next, run string) (int, error) {
			keys, files := fileKeys(stage{Run: run, Files: n}), make([]plannedFile, n)
			err := putFiles(t.Context(), w.Client, next, keys, files)
			var missing datastore.MultiError
			if got := w.Client.GetMulti(t.Context(), keys, files); got != nil && !errors.As(got, &missing) {
				t.Fatal(got)
			}
			stored := n
			for _, err := range missing {
				if err != nil {
					stored--
				}
			}
			return stored, err
		}
		if got, err := put("next", "a"); got != n || err != nil {
			t.Errorf("%d files, %v, want %d", got, err, n)
		}
		if _, err := w.Client.Put(t.Context(), datastore.IDKey("Number", 1, nil), &numbered{1}); err != nil {
			t.Fatal(err)
		}
		run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Number"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := put(run.ID, "b"); got != 0 || err != nil {
			t.Errorf("late: %d files, %v, want none", got, err)
		}
	})
}

// TestEstimate checks that the estimate of an export includes the operations for its parts, and
// their cost.
func TestEstimate(t *testing.T) {
	x := define(t, Options{})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		var keys []*datastore.Key
		for i := range 300 {
			keys = append(keys, datastore.IDKey("Number", int64(i+1), nil))
		}
		if _, err := w.Client.PutMulti(t.Context(), keys, make([]numbered, len(keys))); err != nil {
			t.Fatal(err)
		}
		q, o := mapper.Query{Kind: "Number"}, &mapper.PlanOptions{StartOptions: mapper.StartOptions{PageSize: 10}}
		job, err := x.parts.Plan(t.Context(), w.Engine, q, o)
		if err != nil {
			t.Fatal(err)
		}
		all, err := x.Plan(t.Context(), w.Engine, q, o)
		if err != nil {
			t.Fatal(err)
		}
		want := job.Usage
		want.Writes, want.Reads, want.Deletes = want.Writes+job.Pages, want.Reads+3*job.Pages, want.Deletes+job.Pages
		if job.Pages < 30 || fmt.Sprint(all.Usage) != fmt.Sprint(want) ||
			all.Dollars != w.Engine.Prices().Dollars(want) {
			t.Errorf("%+v for %v, want %+v", all, all.Dollars, want)
		}
		if few, err := x.Plan(t.Context(), w.Engine, q, nil); err != nil || few.Pages >= job.Pages {
			t.Errorf("without options: %+v, %v", few, err)
		}
		if est, err := x.Plan(t.Context(), w.Engine, mapper.Query{}, nil); err == nil ||
			!strings.Contains(err.Error(), `export: plan "numbers"`) {
			t.Errorf("of no kind: %+v, %v", est, err)
		}
	})
}

// TestEstimatedPages checks that an estimate uses the export's default page size.
func TestEstimatedPages(t *testing.T) {
	for _, c := range []struct{ fileBytes, pages int64 }{{0, 3}, {largePages, 3}, {largePages - 1, 6}} {
		x := define(t, Options{FileBytes: c.fileBytes})
		mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
			for from := int64(1); from < 3000; from += 500 {
				var keys []*datastore.Key
				for id := range int64(500) {
					keys = append(keys, datastore.IDKey("Number", from+id, nil))
				}
				if _, err := w.Client.PutMulti(t.Context(), keys, make([]numbered, len(keys))); err != nil {
					t.Fatal(err)
				}
			}
			est, err := x.Plan(t.Context(), w.Engine, mapper.Query{Kind: "Number"},
				&mapper.PlanOptions{StartOptions: mapper.StartOptions{ExpectedWorkers: 1}})
			if err != nil || est.Pages != c.pages {
				t.Errorf("files of %d bytes: %+v, %v, want %d pages", c.fileBytes, est, err, c.pages)
			}
		})
	}
}
