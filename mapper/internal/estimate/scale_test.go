package estimate

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/tasks"
)

var writeScale = flag.Bool("scale", false, "write the table of TestScale to docs/scale.md")

// virtualKinds are simulated kinds whose keys are distributed in different ways.
var virtualKinds = []struct {
	name string
	key  func(n int64) func(rank int64) *datastore.Key
}{
	{"sequential", func(int64) func(int64) *datastore.Key { return SequentialKey }},
	{"uuid", func(n int64) func(int64) *datastore.Key {
		gap := math.MaxUint64 / uint64(n)
		return func(i int64) *datastore.Key {
			high := gap*uint64(i) + uint64(i)*0x9e3779b97f4a7c15%gap
			return datastore.NameKey("K", fmt.Sprintf("%08x-%04x-4000-8000-%012x", high>>32, high>>16&0xffff,
				high&0xffff), nil)
		}
	}},
	{"ancestors", func(n int64) func(int64) *datastore.Key {
		return func(i int64) *datastore.Key { // half of the entities are in one group
			customer := i / 20
			if i >= n/4 && i < n*3/4 {
				customer = n / 4 / 20
			}
			return datastore.IDKey("K", i+1,
				datastore.IDKey("Customer", customer+1, datastore.NameKey("Region", "eu-west", nil)))
		}
	}},
}

const scaleHeader = `| million entities | workers | pages | tasks | depth | largest record | largest commit ` +
	`| all at work after | job takes | dispatches/s | page writes/s |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`

// TestScale simulates the splitting of kinds of up to a billion entities, or ten million with
// -short. It checks the numbers in docs/scale.md. The table there has the kinds with at least a
// million entities.
func TestScale(t *testing.T) {
	testflag.Sequential(t)
	const page = 500
	most := int64(1e9)
	if !*writeScale {
		most = int64(testflag.Size(t, 1e7, 1e7, 1e9))
	}
	var table strings.Builder
	table.WriteString(scaleHeader)
	for _, n := range []int64{1e4, 1e5, 1e6, 1e7, 1e8, 1e9} {
		if n > most {
			continue
		}
		for _, workers := range []int64{100, 1000, 5000} {
			if row := scaleOf(t, n, workers, page); n >= 1e6 {
				table.WriteString(row)
			}
		}
	}
	const file, begin, end = "../../../docs/scale.md", "<!-- table: begin -->\n", "<!-- table: end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	old, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no %s", file, strings.TrimSpace(end))
	case *writeScale:
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if most == 1e9 && old != table.String() {
		t.Errorf("%s has another table; write it again: go test ./mapper/internal/estimate -run TestScale -args -scale",
			file)
	}
	for row := range strings.Lines(table.String()) {
		if !strings.Contains(old, row) {
			t.Errorf("%s does not have %q; write its table again: go test ./mapper/internal/estimate -run TestScale "+
				"-args -scale", file, row)
		}
	}
}

// scaleOf returns the row of the table for kinds of n entities. The row shows the last kind, whose
// keys make the largest records. The test fails if the simulated times of the kinds differ.
func scaleOf(t *testing.T, n, workers, page int64) (row string) {
	t.Helper()
	var longest time.Duration
	for i, kind := range virtualKinds {
		times := UsualTimes(tasks.Parallel)
		times.Page += time.Duration(page) * 2 * time.Millisecond
		m, err := Simulate(t.Context(), VirtualKind{n, kind.key(n)}, workers, page, times)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%s, %d entities, %d workers", kind.name, n, workers)
		pages := float64(n) / float64(page)
		deepest := int64(math.Log(pages)/math.Log(split.MaxFanOut)) + 4
		mostPages := max(1.1*pages+20, split.MaxFanOut) // small kinds are cut for all workers
		if m.Done != n || m.Depth > deepest || float64(m.Pages) > mostPages || m.Tasks > m.Pages {
			t.Errorf("%s: %d entities in %d pages of %d tasks, depth %d, want at most %d", name, m.Done, m.Pages,
				m.Tasks, m.Depth, deepest)
		}
		if m.LargestRecord > split.MaxSampleBytes+1<<10 || m.LargestCommit > 8<<20 {
			t.Errorf("%s: a record of %d bytes, a commit of %d", name, m.LargestRecord, m.LargestCommit)
		}
		start, takes := m.Start(workers), m.Takes(workers)
		if i == 0 {
			longest = takes
		}
		if ratio := takes.Seconds() / longest.Seconds(); ratio < 0.99 || ratio > 1.01 {
			t.Errorf("%s: it takes %v, and %v with other keys", name, takes, longest)
		}
		row = fmt.Sprintf("| %d | %d | %d | %d | %d | %.1f KiB | %.0f KiB | %.1f s | %v | %.1f | %.0f |\n", n/1e6,
			workers,
			m.Pages, m.Tasks, m.Depth, float64(m.LargestRecord)/1024, float64(m.LargestCommit)/1024, start.Seconds(),
			takes.Round(time.Second), float64(m.Tasks)/takes.Seconds(), 2*float64(m.Pages)/takes.Seconds())
	}
	return row
}
