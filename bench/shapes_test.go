package bench

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/mapper"
)

var (
	seedsFlag     = flag.Int("seeds", 0, "how many random shapes; 0: a few small ones")
	seedFlag      = flag.Uint64("seed", 1, "the seed of the first random shape")
	latenciesFlag = flag.String("latencies", "usual",
		"what calls take: usual, triple, dispatch, jitter, production or free")
)

// rivals are the strategies that TestShapes compares with adaptive splitting.
var rivals = []strategy{
	{"adaptive", fixed(mapper.Splitting{})},
	{"process-first", fixed(mapper.Splitting{First: 1, FanOut: 10})},
	{"static-W", func(workers int) mapper.Splitting { return mapper.Splitting{First: workers, FanOut: 1} }},
	{"static-8W", func(workers int) mapper.Splitting { return mapper.Splitting{First: 8 * workers, FanOut: 1} }},
}

// Aims of adaptive splitting over 300 random shapes. The first three limit the ratios of its times
// to the ideal times. The fourth limits the share of shapes in which another strategy is faster by
// more than the factor beaten.
const (
	aimMedian, aimP95, aimWorst = 1.10, 1.25, 1.5
	aimBeaten                   = 0.02
	beaten                      = 1.05
)

// TestShapes compares strategies on random shapes: kinds, functions and processes that nobody has
// chosen. It checks the distribution of the ratios of the jobs' times to the shapes' ideal times,
// and not single shapes. Each seed gives one shape. docs/shapes.md says what a shape consists of,
// and what its ideal is.
//
//	go test ./bench -run TestShapes -v -timeout 24h -args -seeds 300
//	go test ./bench -run TestShapes -v -args -seeds 1 -seed 7 -strategies adaptive
//	go test ./bench -run TestShapes -v -timeout 24h -args -seeds 300 -latencies production
//
// With these flags shapes have 1,000,000 entities and 100 workers; -entities and -workers change
// that. Without flags a few shapes have a tenth of both. Outside of .ci/nightly, without flags, only
// adaptive splitting is run: the other strategies are not checked on small shapes.
func TestShapes(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	few := 1
	if nightly.Is() {
		few = 3
	} else if *seedsFlag == 0 {
		t.Log("left out: .ci/nightly runs more shapes")
	}
	seeds, n, workers := cmp.Or(*seedsFlag, few), cmp.Or(*entities, 1_000_000), cmp.Or(*workersFlag, 100)
	small := *seedsFlag == 0
	if small {
		n, workers = 100_000, 10
	}
	if workers%fleetSize != 0 {
		t.Fatalf("-workers has to be a multiple of %d, it is %d", fleetSize, workers)
	}
	l := pick(t, allLatencies, *latenciesFlag)
	some := chosen(t, *strategyFlag, rivals)
	if small && *strategyFlag == "" && !nightly.Is() {
		some = rivals[:1]
	}
	// with a higher value, two databases of a million entities would take more than 4 GB
	defer debug.SetGCPercent(debug.SetGCPercent(200))

	var mu sync.Mutex
	ran := make(map[string][]shapeRun)
	t.Run("seeds", func(t *testing.T) { // this Run returns when all its parallel subtests have ended
		for i := range seeds {
			seed := *seedFlag + uint64(i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				var runs []shapeRun
				synctest.Test(t, func(t *testing.T) { runs = runShape(t, seed, n, workers, l, some) })
				mu.Lock()
				defer mu.Unlock()
				for _, r := range runs {
					ran[r.strategy] = append(ran[r.strategy], r)
				}
				if t.Failed() {
					t.Logf("seed %d; replay it by %s", seed, replay(seed, n, workers, l))
				}
			})
		}
	})
	for _, s := range some {
		figures := figuresOf(s.name, ran[s.name])
		if s.name == "adaptive" {
			figures.check(t, small, n, workers, l, ran)
		}
		if testing.Verbose() {
			line, err := json.Marshal(figures)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(os.Stdout, "%s\n", line)
		}
	}
}

// TestOneTaskAProcess runs three shapes, or one outside of .ci/nightly, in processes that handle one
// task at a time, so that a process sees the speed of only one task. If an engine takes this for the
// speed of the whole job, it splits badly. In an earlier version, whose ranges did not record their
// speed, the shapes took 2.2, 2.3 and 1.5 times their ideal times.
func TestOneTaskAProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out makespans")
	}
	const entities, workers, most = 50_000, fleetSize, 1.35
	l := pick(t, allLatencies, "usual")
	for i, seed := range []uint64{20, 35, 59} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if i > 0 {
				nightly.Leave(t)
			}
			synctest.Test(t, func(t *testing.T) {
				for _, r := range runShape(t, seed, entities, workers, l, rivals[:1]) {
					if r.ratio > most {
						t.Errorf("%s takes %.2f times the ideal, above %v; replay it by %s", r.strategy, r.ratio, most,
							replay(seed, entities, workers, l))
					}
				}
			})
		})
	}
}

func replay(seed uint64, n, workers int, l latencies) string {
	return fmt.Sprintf("go test ./bench -run TestShapes -v -args -seeds 1 -seed %d -entities %d -workers %d "+
		"-latencies %s", seed, n, workers, l.name)
}

// A shapeRun is the result of one job over a shape.
type shapeRun struct {
	seed     uint64
	strategy string
	ratio    float64 // the job's time divided by the ideal time
}

// runShape creates the shape of a seed, and runs a job over it for each strategy, one after the
// other.
func runShape(t *testing.T, seed uint64, n, workers int, l latencies, some []strategy) (runs []shapeRun) {
	r := draw(seed, n, workers, l)
	c := newCloud(l.with(r), seed)
	f := newFleet(t, workers, c)
	f.seed(r)
	query := mapper.Query{Kind: kind}
	if r.matches != nil {
		query.Filters = []mapper.Filter{mapper.Where("Match", "=", true)}
	}
	ideal := r.ideal(c.latencies, workers)
	var text strings.Builder
	fmt.Fprintf(&text, "seed %3d: ideal %6.1f s", seed, ideal.Seconds())
	for _, s := range some {
		visited := make([]atomic.Int32, n)
		begun := time.Now()
		f.function = r.function(visited, begun)
		tl := &timeline{begun: begun}
		if *timelineFlag {
			f.function = tl.watch(f.function)
		}
		status, took := f.run(fmt.Sprintf("%d-%s", seed, s.name), query, s.splitting(workers), r.shifts, r.cold)
		if status.State != mapper.StateSucceeded || status.Processed != int64(r.matching()) {
			t.Errorf("%s: the job is %+v, want %d processed", s.name, status, r.matching())
		}
		for i := range visited {
			if matches := r.matches == nil || r.matches[i]; visited[i].Load() > 0 != matches {
				t.Errorf("%s: entity %d of %v was visited %d times", s.name, i, r.key(i), visited[i].Load())
				break
			}
		}
		run := shapeRun{seed, s.name, took.Seconds() / ideal.Seconds()}
		fmt.Fprintf(&text, "  %s %6.3f", s.name, run.ratio)
		if *timelineFlag {
			fmt.Fprintf(&text, " [%s %% busy; %d pages, %d tasks, depth %d]", tl.busy(20, took, workers), status.Pages,
				status.Tasks, status.MaxDepth)
		}
		runs = append(runs, run)
	}
	fmt.Fprintf(&text, "  | %v", r)
	if testing.Verbose() {
		fmt.Fprintln(os.Stdout, text.String())
	}
	return runs
}

// figures summarize the ratios of a strategy's times to the ideal times.
type figures struct {
	Strategy string  `json:"strategy"`
	Shapes   int     `json:"shapes"`
	Median   float64 `json:"median"`
	P95      float64 `json:"p95"`
	Worst    float64 `json:"worst"`

	worst uint64 // the seed of the worst ratio
}

func figuresOf(name string, runs []shapeRun) figures {
	f := figures{Strategy: name, Shapes: len(runs)}
	if len(runs) == 0 {
		return f
	}
	slices.SortFunc(runs, func(a, b shapeRun) int { return cmp.Compare(a.ratio, b.ratio) })
	at := func(share float64) float64 { // the ratio that the given share of all ratios does not exceed
		return math.Round(1000*runs[int(math.Ceil(share*float64(len(runs))))-1].ratio) / 1000
	}
	f.Median, f.P95, f.Worst, f.worst = at(0.5), at(0.95), at(1), runs[len(runs)-1].seed
	return f
}

// check checks that adaptive splitting reaches its aims.
func (f figures) check(t *testing.T, small bool, n, workers int, l latencies, ran map[string][]shapeRun) {
	t.Helper()
	best := make(map[uint64]shapeRun) // the fastest of the other strategies, by seed
	for name, runs := range ran {
		for _, r := range runs {
			if b, ok := best[r.seed]; name != "adaptive" && (!ok || r.ratio < b.ratio) {
				best[r.seed] = r
			}
		}
	}
	var lost []string
	for _, r := range ran["adaptive"] {
		if b, ok := best[r.seed]; ok && r.ratio > beaten*b.ratio {
			lost = append(lost, fmt.Sprintf("%d by %s (%.3f, %.3f)", r.seed, b.strategy, r.ratio, b.ratio))
		}
	}
	t.Logf("another strategy is more than 5%% faster on %d of %d shapes: %s", len(lost), f.Shapes,
		strings.Join(lost, ", "))
	if small {
		if f.Worst > aimWorst {
			t.Errorf("seed %d takes %.3f of the ideal, want at most %.2f; replay it by %s", f.worst, f.Worst, aimWorst,
				replay(f.worst, n, workers, l))
		}
		return
	}
	if l.name != "usual" || n < 1_000_000 || workers != 100 || f.Shapes < 100 {
		return
	}
	if f.Median > aimMedian || f.P95 > aimP95 || f.Worst > aimWorst {
		t.Errorf("the median is %.3f, the 95th percentile %.3f and the worst %.3f, want at most %.2f, %.2f and %.2f; "+
			"replay the worst by %s",
			f.Median, f.P95, f.Worst, aimMedian, aimP95, aimWorst, replay(f.worst, n, workers, l))
	}
	if float64(len(lost)) > aimBeaten*float64(f.Shapes) {
		t.Errorf("another strategy is more than 5%% faster on %d shapes, want at most %.0f%%", len(lost), 100*aimBeaten)
	}
}
