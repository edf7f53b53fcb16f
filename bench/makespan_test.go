package bench

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/mapper"
)

var (
	asJSON       = flag.Bool("json", false, "print one JSON object a row")
	keysFlag     = flag.String("keys", "", "shapes of keys, with commas between them; empty: all")
	costsFlag    = flag.String("costs", "", "costs; empty: all")
	strategyFlag = flag.String("strategies", "", "strategies; empty: all")
	workersFlag  = flag.Int("workers", 0, "100 or 1000; 0: both")
	entities     = flag.Int("entities", 0, "how many entities a row has; 0: 200,000")
	pageSize     = flag.Int("page", 500, "the most entities a page")
	filterFlag   = flag.String("filters", "none", "filters, with commas between them: none, 1%, last-5%")
	modeFlag     = flag.String("mode", "update", "update or visit")
	callsFlag    = flag.Bool("calls", false, "print the calls of each job to the Datastore, by purpose")
)

// A row is the result of one job, and a line of the printed table.
type row struct {
	Mode      string  `json:"mode"`
	Keys      string  `json:"keys"`
	Costs     string  `json:"costs"`
	Filter    string  `json:"filter"`
	Strategy  string  `json:"strategy"`
	Workers   int     `json:"workers"`
	Entities  int     `json:"entities"`
	Page      int     `json:"page"`
	Makespan  float64 `json:"makespan_s"`
	Ideal     float64 `json:"ideal_s"`
	Ratio     float64 `json:"ratio"`
	Tasks     int64   `json:"tasks"`
	Pages     int64   `json:"pages"`
	FullPages int64   `json:"full_pages"`
	Depth     int64   `json:"depth"`
	Reads     int64   `json:"reads"`
	Writes    int64   `json:"writes"`
	RPCs      int64   `json:"rpcs"`

	used billing.Usage
}

const header = "keys        costs     filter  strategy       workers  entities  page  makespan_s   ideal_s  ratio   " +
	"tasks   pages  full_pages  depth     reads    writes     rpcs"

func (r row) String() string {
	return fmt.Sprintf("%-10s  %-8s  %-6s  %-13s  %7d  %8d  %4d  %10.2f  %8.2f  %5.3f  %6d  %6d  %10d  %5d  %8d  %8d "+
		" %7d",
		r.Keys, r.Costs, r.Filter, r.Strategy, r.Workers, r.Entities, r.Page, r.Makespan, r.Ideal, r.Ratio,
		r.Tasks, r.Pages, r.FullPages, r.Depth, r.Reads, r.Writes, r.RPCs)
}

func (r row) print(t *testing.T) {
	if !*asJSON {
		t.Log(r)
		return
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stdout, "%s\n", line)
}

type namer interface{ id() string }

func (s shape) id() string    { return s.name }
func (c cost) id() string     { return c.name }
func (s strategy) id() string { return s.name }

// chosen returns the elements that a flag names. If the flag is empty it returns all.
func chosen[T namer](t *testing.T, flag string, all []T) []T {
	if flag == "" {
		return all
	}
	var some []T
	for name := range strings.SplitSeq(flag, ",") {
		some = append(some, pick(t, all, name))
	}
	return some
}

func pick[T namer](t *testing.T, all []T, name string) T {
	i := slices.IndexFunc(all, func(x T) bool { return x.id() == name })
	if i < 0 {
		t.Fatalf("there is no %q", name)
	}
	return all[i]
}

// TestMakespan compares the times of jobs with the ideal time. Without flags it runs a few jobs.
// Flags choose others:
//
//	go test ./bench -run TestMakespan -v -timeout 24h -args -entities 1000000 -workers 100
//	go test ./bench -run TestMakespan -v -timeout 24h -args -entities 200000 \
//	    -keys values,namespaces -filters none,1%
func TestMakespan(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	if !*asJSON {
		t.Log("\n" + header)
	}
	if !slices.Contains([]int{0, 100, 1000}, *workersFlag) {
		t.Fatalf("-workers has to be 100 or 1000, it is %d", *workersFlag)
	}
	if !slices.Contains([]string{"update", "visit"}, *modeFlag) {
		t.Fatalf("-mode has to be update or visit, it is %q", *modeFlag)
	}
	if *entities == 0 && *keysFlag+*costsFlag+*strategyFlag == "" && *workersFlag == 0 && *filterFlag == "none" {
		sequential, uniform := pick(t, shapes, "sequential"), pick(t, costs, "uniform")
		adaptive := pick(t, strategies, "adaptive")
		if !nightly.Is() {
			t.Log("left out: .ci/nightly runs a job of four times the size, and other shapes, costs and strategies")
			run(t, *modeFlag, sequential, uniform, filters[0], adaptive, 25, 25*perWorker)
			return
		}
		ours := run(t, *modeFlag, sequential, uniform, filters[0], adaptive, 100, checked)
		if static := run(t, *modeFlag, sequential, uniform, filters[0], pick(t, strategies, "static-32"), 100,
			checked); 3*ours.Makespan > static.Makespan {
			t.Errorf("adaptive takes %.2f s, and static shards %.2f s, want 3 times as long", ours.Makespan,
				static.Makespan)
		}
		run(t, *modeFlag, pick(t, shapes, "ancestors"), uniform, filters[0], adaptive, 100, checked)
		run(t, *modeFlag, pick(t, shapes, "uuid"), pick(t, costs, "last-10%"), filters[0], adaptive, 100, checked)
		run(t, "visit", sequential, pick(t, costs, "hot-1%"), filters[0], adaptive, 100, checked)
		return
	}
	for _, s := range chosenShapes(t) {
		for _, c := range chosenCosts(t) {
			for _, workers := range []int{100, 1000} {
				if *workersFlag != 0 && *workersFlag != workers {
					continue
				}
				for _, f := range chosen(t, *filterFlag, filters) {
					compareStrategies(t, s, c, f, workers)
				}
			}
		}
	}
}

// compareStrategies runs a job with each of the chosen strategies, and compares them with the
// adaptive one.
func compareStrategies(t *testing.T, s shape, c cost, f filter, workers int) {
	t.Helper()
	rows := make(map[string]row)
	for _, st := range chosen(t, *strategyFlag, strategies) {
		if s.all && st.name != "adaptive" {
			continue // the other strategies support only one kind in one namespace
		}
		rows[st.name] = run(t, *modeFlag, s, c, f, st, workers, cmp.Or(*entities, checked))
	}
	for name, r := range rows {
		if ours, ok := rows["adaptive"]; ok && name != "adaptive" {
			ours.compare(t, r)
		}
	}
}

// chosenShapes returns the shapes that the flag -keys names.
func chosenShapes(t *testing.T) []shape {
	if *keysFlag == "" {
		return shapes
	}
	return chosen(t, *keysFlag, slices.Concat(shapes, otherShapes))
}

// A filter selects the entities of a job among n entities.
type filter struct {
	name    string
	matches func(i, n int) bool // nil: all match
}

func (f filter) id() string { return f.name }

var filters = []filter{
	{"none", nil},
	{"1%", func(i, _ int) bool { return i*7919%100 == 0 }},
	{"last-5%", func(i, n int) bool { return i >= n-n/20 }},
}

func run(t *testing.T, mode string, s shape, c cost, f filter, st strategy, workers, n int) (r row) {
	t.Run(fmt.Sprintf("%s/%s/%s/%s/%s/%d", mode, s.name, c.name, f.name, st.name, workers), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { r = makespan(t, mode, s, c, f, st, workers, n) })
		r.print(t)
		if st.name == "adaptive" && s.value == nil && !s.all && f.matches == nil {
			r.check(t)
		}
	})
	return r
}

// A job's times are checked if it has at least checked entities, or perWorker for each worker. The
// time of a smaller job is mostly its start.
const checked, perWorker = 200_000, 2000

func (r row) isChecked() bool { return r.Entities >= min(checked, perWorker*r.Workers) }

// check checks that an adaptive job was fast enough, and made few enough tasks, calls, pages and
// reads.
func (r row) check(t *testing.T) {
	t.Helper()
	if most := r.limit(); r.Ratio > most {
		t.Errorf("%.3f of the ideal, want at most %.2f", r.Ratio, most)
	}
	if deepest := math.Log(float64(r.Entities)/float64(r.Page))/math.Log(100) + 4; float64(r.Depth) > deepest {
		t.Errorf("a depth of %d, want at most %.1f", r.Depth, deepest)
	}
	if !r.isChecked() {
		return
	}
	if r.Tasks > r.Pages {
		t.Errorf("%d tasks for %d pages", r.Tasks, r.Pages)
	}
	mostCalls, mostPages, reads := 5.0, 1.10, 1.02
	if r.Entities < 1_000_000 { // the start counts for more in small jobs, where workers also share a few pages
		mostCalls, mostPages, reads = 6.5, 5, 1.06
		if r.Costs != "uniform" { // entities that a task has read ahead are read once more by the worker that gets them
			reads = 1.15
		}
	}
	pages, n, written := float64(r.Pages), float64(r.Entities), 0.0
	if r.Mode == "update" {
		if written = n; r.Costs != "uniform" { // if calls of the function take long, more pages are cut while they run
			reads = math.Inf(1)
		}
	}
	for _, check := range []struct {
		what       string
		have, most float64
	}{
		{"pages for each full one", pages / float64(r.FullPages), mostPages},
		{"writes of records a page", (float64(r.Writes) - written) / pages, 2.3},
		{"reads an entity", float64(r.Reads) / n, reads},
		{"RPCs a page", float64(r.RPCs) / pages, mostCalls},
	} {
		if check.have > check.most {
			t.Errorf("%.3f %s, want at most %.2f", check.have, check.what, check.most)
		}
	}
}

// compare checks that an adaptive job is fast enough in comparison with the same job under another
// strategy.
func (r row) compare(t *testing.T, other row) {
	t.Helper()
	least := 1 / 1.03
	if other.Strategy == "static-32" && other.Workers == 100 {
		if least = 3; slices.Contains([]string{"hot-1%", "last-10%"}, other.Costs) {
			least = 20
		}
	}
	if faster := other.Makespan / r.Makespan; r.Entities >= 1_000_000 && faster < least {
		t.Errorf("%s, %s, %d workers: %.2f times as fast as %s, want at least %.2f", r.Keys, r.Costs, r.Workers, faster,
			other.Strategy, least)
	}
}

// limit returns the highest allowed ratio of an adaptive job's time to the ideal time.
func (r row) limit() float64 {
	const free = 1e9
	limits := map[int]map[string]float64{
		100:  {"uniform": 1.08, "pareto": 1.08, "hot-1%": 1.10, "last-10%": 1.10},
		1000: {"uniform": 1.5, "pareto": 2, "hot-1%": 2.3, "last-10%": 1.5},
	}
	switch {
	case r.Entities >= 1_000_000:
		if most, ok := limits[r.Workers][r.Costs]; ok {
			return most
		}
		return 1.5
	case r.Workers <= 100 && r.isChecked():
		return 1.3
	}
	return free
}

// makespan runs one job, and returns its result.
func makespan(t *testing.T, mode string, s shape, c cost, f filter, st strategy, workers, n int) row {
	rng := rand.New(rand.NewPCG(1, 0))
	keys := s.keys(rng, n)
	items := make([]item, n)
	var times []time.Duration // how long the function takes for each matching entity
	query := mapper.Query{Kind: kind, AllNamespaces: s.all}
	if f.matches != nil {
		query.Filters = []mapper.Filter{mapper.Where("Match", "=", true)}
	}
	if s.value != nil {
		query.ShardBy = "Value"
	}
	for i := range items {
		cost := c.of(rng, i, n)
		items[i].Cost = int64(cost)
		if s.value != nil {
			items[i].Value = 1 + s.value(i, n)
		}
		items[i].Match = f.matches != nil && f.matches(i, n)
		if items[i].Match || f.matches == nil {
			times = append(times, cost)
		}
	}
	w := newWorld(t, workers)
	w.seed(keys, items)
	m, updates := updateItems, mode == "update"
	if !updates {
		m = visitItems
	}
	before, delivered := w.emulator.Usage(), w.delivered.Load()
	w.network.on.Store(true)
	w.calls.reset()
	begun := time.Now()
	job, err := m.Start(t.Context(), w.processes[0], query, mapper.NoParams{}, &mapper.StartOptions{
		ID: "bench", PageSize: *pageSize, ExpectedWorkers: workers, Splitting: st.splitting(workers),
	})
	w.must(err)
	status, used := w.await(job)
	used = used.Sub(before)
	if *callsFlag {
		t.Logf("\n%v", &w.calls)
	}
	w.check(job, status, keys, items, f.matches != nil, updates)
	best := ideal(times, *pageSize, workers)
	took := status.Ended.Sub(begun) + perCommit // the record has the time at which the last commit started
	var rpcs int64
	for _, method := range []string{"Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "Commit",
		"Rollback"} {
		rpcs += used.RPCs[method]
	}
	return row{
		Mode: mode, Keys: s.name, Costs: c.name, Filter: f.name, Strategy: st.name, Workers: workers,
		Entities: len(times), Page: *pageSize,
		Makespan: took.Seconds(), Ideal: best.Seconds(), Ratio: took.Seconds() / best.Seconds(),
		Tasks: w.delivered.Load() - delivered, Pages: status.Pages, FullPages: status.FullPages, Depth: status.MaxDepth,
		Reads: used.Reads, Writes: used.Writes, RPCs: rpcs, used: used,
	}
}
