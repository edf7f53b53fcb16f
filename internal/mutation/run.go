package mutation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scattermap/scattermap/internal/mutation/mutant"
)

// Suites has the packages whose tests look for the mutants, as folders below the module's root.
var Suites = []string{
	"mapper", "mapper/protocol", "mapper/mappertest", "mapper/internal/record", "mapper/internal/ledger",
	"mapper/internal/undolog", "mapper/internal/undo", "mapper/internal/page", "mapper/internal/store",
	"mapper/internal/wire", "mapper/internal/gate",
	"mapper/internal/lifecycle", "mapper/internal/executor", "export", "prebuilt",
}

// A Test is a test that looks for mutants. It has the test's processor time, and the mutants that
// the test can find.
type Test struct {
	Binary, Dir, Name string
	Args              []string // flags for the test binary
	CPU               time.Duration
	// Seen has a byte for each mutant, by its number: 1 if the mutant makes a difference in the
	// test.
	Seen []byte
}

// String returns the names of the test's package and of the test.
func (t *Test) String() string {
	return strings.Join(append([]string{filepath.Base(t.Dir) + "." + t.Name}, t.Args...), " ")
}

// A Lab tries mutants. It has the tests that may find them, and the test binaries, which contain
// all mutants.
type Lab struct {
	Mutants []Mutant
	Tests   []*Test
	Broken  []string // tests that fail even without a mutant, and so can't find one

	root, dir string
	suites    []string
	workers   int

	mu    sync.Mutex
	kills map[string]map[*Test]int // number of mutants that each test has found, by changed function
}

// Build makes the mutants of the targets, and builds the test binaries of the suites. Each binary
// contains all mutants. The argument root is the folder of the module, and dir is the folder for
// the binaries. The argument workers is how many processes the Lab runs at the same time.
func Build(ctx context.Context, root, dir string, targets []Target, suites []string, workers int) (*Lab, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	mutants, files, err := Generate(root, targets)
	if err != nil {
		return nil, err
	}
	overlay, err := Overlay(files, dir)
	if err != nil {
		return nil, err
	}
	to := dir + string(filepath.Separator)
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", to}
	for _, s := range suites {
		args = append(args, "./"+s)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests with mutants: %w\n%.4000s", err, out)
	}
	kills := make(map[string]map[*Test]int)
	return &Lab{Mutants: mutants, root: root, dir: dir, suites: suites, workers: workers, kills: kills}, nil
}

// simulations are the tests that run with random seeds, and the number of seeds with which a Lab
// runs each of them.
var simulations = map[string]int{
	"TestSimulation": 12, "TestUndoSimulation": 4, "TestRingSimulation": 4, "TestEraseSimulation": 2, "TestStorm": 2,
	"TestEachCallFails": 30,
}

const seedsAtOnce = 2

// All collects the tests of all suites in l.Tests. A simulation (a test with random seeds) is in it
// several times, with different seeds.
func (l *Lab) All(ctx context.Context) error {
	for _, s := range l.suites {
		binary, dir := filepath.Join(l.dir, filepath.Base(s)+".test"), filepath.Join(l.root, s)
		// Examples are left out, because they wait in real time.
		list := exec.CommandContext(ctx, binary, "-test.list", "^(Test|Fuzz)")
		list.Dir = dir
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("list the tests of %s: %w", s, err)
		}
		for name := range strings.FieldsSeq(string(out)) {
			n, random := simulations[name]
			if !random {
				l.Tests = append(l.Tests, &Test{Binary: binary, Dir: dir, Name: name, Args: []string{"-seed", "1"}})
			}
			for seed := 1; seed <= n; seed += seedsAtOnce {
				l.Tests = append(l.Tests, &Test{Binary: binary, Dir: dir, Name: name,
					Args: []string{"-seed", strconv.Itoa(seed), "-seeds", strconv.Itoa(seedsAtOnce)}})
			}
		}
	}
	return nil
}

// test returns the test whose String is name, or nil.
func (l *Lab) test(name string) *Test {
	of := strings.Fields(name)
	pkg, name, _ := strings.Cut(of[0], ".")
	for _, s := range l.suites {
		if path.Base(s) == pkg {
			return &Test{
				Binary: filepath.Join(l.dir, pkg+".test"), Dir: filepath.Join(l.root, s), Name: name, Args: of[1:],
			}
		}
	}
	return nil
}

// Reach runs each test without a mutant. It records the test's processor time, and which mutants
// would make a difference in the test. It removes tests that fail. If file is not empty, Reach uses
// earlier results from this file, and adds new ones to it. It reports its progress by calling say.
func (l *Lab) Reach(ctx context.Context, file string, say func(string)) error {
	known, err := readReach(file)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var good []*Test
	err = l.Each(len(l.Tests), func(i int) error {
		t := l.Tests[i]
		if of, ok := known[t.String()]; ok {
			t.CPU, t.Seen = of.CPU, make([]byte, len(l.Mutants))
			for _, m := range l.Mutants {
				if _, ok := slices.BinarySearch(of.Seen, hash(m.Name())); ok {
					t.Seen[m.ID] = 1
				}
			}
			mu.Lock()
			defer mu.Unlock()
			good = append(good, t)
			return nil
		}
		r, err := l.reach(ctx, t, fmt.Sprintf("seen.%d", i))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if r.failed {
			l.Broken = append(l.Broken, t.String())
			say(fmt.Sprintf("%s fails with no mutant on:\n%.3000s", t, r.out))
			return nil
		}
		good = append(good, t)
		return l.writeReach(file, t)
	})
	slices.SortFunc(good, func(a, b *Test) int {
		return cmp.Or(cmp.Compare(a.CPU, b.CPU), cmp.Compare(a.String(), b.String()))
	})
	l.Tests = good
	return err
}

// reach runs one test without a mutant. It records the test's processor time, and which mutants
// would make a difference. The argument file is the name of a temporary file. If the test fails,
// the result says so, and there is no error.
func (l *Lab) reach(ctx context.Context, t *Test, file string) (ran, error) {
	seen := filepath.Join(l.dir, file)
	if err := os.WriteFile(seen, make([]byte, len(l.Mutants)), 0o600); err != nil {
		return ran{}, err
	}
	defer os.RemoveAll(seen)
	r := run(ctx, []*Test{t}, limits{cpu: 10 * time.Minute, wall: time.Hour}, mutant.SeenEnv+"="+seen)
	if r.err != nil && !r.failed {
		return r, r.err
	}
	data, err := os.ReadFile(seen)
	t.Seen, t.CPU = data, r.cpu
	return r, err
}

// A reached is a line of Reach's file: the result of one test without a mutant. It has hashes of
// the names of the mutants that would make a difference.
type reached struct {
	Test string
	CPU  time.Duration
	Seen []uint64
}

func hash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash's Write never fails
	return h.Sum64()
}

func readReach(file string) (map[string]reached, error) {
	known := make(map[string]reached)
	if file == "" {
		return known, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return known, nil
	}
	for line := range bytes.Lines(text) {
		var r reached
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		known[r.Test] = r
	}
	return known, err
}

func (l *Lab) writeReach(file string, t *Test) error {
	if file == "" {
		return nil
	}
	r := reached{Test: t.String(), CPU: t.CPU}
	for _, m := range l.Mutants {
		if t.Seen[m.ID] != 0 {
			r.Seen = append(r.Seen, hash(m.Name()))
		}
	}
	slices.Sort(r.Seen)
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Each calls do for each number from 0 to n-1. As many calls run at the same time as the Lab has
// workers.
func (l *Lab) Each(n int, do func(int) error) error {
	next, errs := make(chan int), make([]error, l.workers)
	var all sync.WaitGroup
	for w := range l.workers {
		all.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = do(i)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return errors.Join(errs...)
}

// A Result says which test has found a mutant, if any.
type Result struct {
	Mutant string `json:"mutant"`
	Place  string `json:"place"`
	// Found is the test that fails while the mutant is on; empty: no test does.
	Found   string `json:"found,omitempty"`
	Late    bool   `json:"late,omitempty"`    // whether this test fails because it does not end in time
	Reached int    `json:"reached,omitempty"` // the number of tests in which the mutant makes a difference
	// Left is the number of tests that were left out because they would take too long.
	Left int           `json:"left,omitempty"`
	CPU  time.Duration `json:"cpu,omitempty"`
}

// Try turns a mutant on, and runs the tests in which it makes a difference, until one fails. The
// tests that have found other mutants of the same function come first, and then the fastest tests.
// After the first batch, Try leaves out tests with which the total processor time would exceed
// most.
func (l *Lab) Try(ctx context.Context, m Mutant, most time.Duration) (Result, error) {
	res := Result{Mutant: m.Name(), Place: m.Place}
	var tests []*Test
	for _, t := range l.Tests {
		if t.Seen[m.ID] != 0 {
			tests = append(tests, t)
		}
	}
	res.Reached = len(tests)
	near := m.Target + "." + m.Func
	l.mu.Lock()
	kills := maps.Clone(l.kills[near])
	l.mu.Unlock()
	slices.SortStableFunc(tests, func(a, b *Test) int { return cmp.Compare(kills[b], kills[a]) })
	first := 0
	for first < len(tests) && first < 4 && kills[tests[first]] > 0 {
		first++
	}
	rest := slices.Clone(tests[first:])
	slices.SortStableFunc(rest, func(a, b *Test) int { return cmp.Compare(a.CPU, b.CPU) })
	tests = append(tests[:first:first], rest...)
	var spent time.Duration
	for len(tests) > 0 {
		batch := nextBatch(tests, spent, first)
		first = 0
		var expected time.Duration
		for _, t := range batch {
			expected += t.CPU
		}
		if spent > 0 && spent+expected > most {
			res.Left = len(tests)
			break
		}
		tests = tests[len(batch):]
		spent += expected
		r, err := l.confirmed(ctx, batch, expected, m)
		res.CPU += r.cpu
		if err != nil {
			return res, err
		}
		if r.failed {
			by := batch[0]
			for _, t := range batch {
				if regexp.MustCompile(failing + t.Name + `\b`).Match(r.out) {
					by = t
				}
			}
			res.Found, res.Late = by.String(), r.late
			l.mu.Lock()
			if l.kills[near] == nil {
				l.kills[near] = make(map[*Test]int)
			}
			l.kills[near][by]++
			l.mu.Unlock()
			return res, nil
		}
	}
	return res, nil
}

// failing matches what a test binary prints before the name of a failed test. A test that runs when
// the time is over counts as failed.
const failing = `(?m)^\s*(--- FAIL: |panic: test timed out.*\n\s+running tests:\n\s+)`

// nextBatch returns the tests at the start of the list that run next, in one process. They are in
// the same binary, and have the same arguments. A batch takes about as much processor time as all
// tests before it (spent), but at least half a second. So batches become longer while no test
// fails. If first is not 0, the batch has at most this number of tests.
func nextBatch(tests []*Test, spent time.Duration, first int) []*Test {
	most := max(500*time.Millisecond, spent)
	n, sum := 0, time.Duration(0)
	for n < len(tests) && (n == 0 || sum+tests[n].CPU <= most && (first == 0 || n < first)) &&
		tests[n].Binary == tests[0].Binary && slices.Equal(tests[n].Args, tests[0].Args) {
		sum += tests[n].CPU
		n++
	}
	return tests[:n]
}

// confirmed runs tests with a mutant on. The parameter expected is the processor time that they
// take without it. If they take far longer, the machine may have been busy. So confirmed runs them
// again with more time.
func (l *Lab) confirmed(ctx context.Context, tests []*Test, expected time.Duration, m Mutant) (r ran, err error) {
	lim := limits{cpu: 2*time.Second + 3*expected, wall: 10*time.Minute + 60*expected}
	r = run(ctx, tests, lim, mutant.OnEnv+"="+strconv.Itoa(m.ID))
	if r.failed && r.late {
		before := r.cpu
		r = run(ctx, tests, limits{cpu: 3 * lim.cpu / 2, wall: 2 * lim.wall}, mutant.OnEnv+"="+strconv.Itoa(m.ID))
		r.cpu += before
	}
	if r.failed {
		return r, nil
	}
	return r, r.err
}

// A limits has the largest processor time and real time of a process.
type limits struct{ cpu, wall time.Duration }

// A ran is the result of a process that runs tests.
type ran struct {
	failed, late bool // whether a test has failed, and whether the process took too long
	out          []byte
	cpu          time.Duration
	err          error // why the process could not run, or its exit error if a test failed
}

// memoryKiB limits the memory of a process that runs tests, in KiB, because a mutant may allocate
// memory without end.
const memoryKiB = 8 << 20

func run(ctx context.Context, tests []*Test, lim limits, env string) (r ran) {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.Name
	}
	script := fmt.Sprintf("ulimit -t %d; ulimit -v %d; exec \"$@\"", int(lim.cpu.Seconds())+1, memoryKiB)
	args := []string{"-c", script, "sh", tests[0].Binary, "-test.failfast", "-test.short",
		"-test.run", "^(" + strings.Join(names, "|") + ")$", "-test.timeout", lim.wall.String()}
	args = append(args, tests[0].Args...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir, c.Env = tests[0].Dir, append(os.Environ(), env, "GOMAXPROCS=1", "GOGC=400")
	waited := make(chan struct{})
	var out bytes.Buffer
	c.Stdout, c.Stderr, c.WaitDelay = &out, &out, 10*time.Second
	if r.err = c.Start(); r.err != nil {
		return r
	}
	idle := make(chan bool)
	go func() { idle <- stopIdle(c.Process, waited) }()
	r.err = c.Wait()
	close(waited)
	stopped := <-idle
	r.out = out.Bytes()
	if c.ProcessState != nil {
		r.cpu = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	exit := new(exec.ExitError)
	switch {
	case ctx.Err() != nil:
		r.err = ctx.Err()
	case errors.As(r.err, &exit) && exit.ExitCode() != 126 && exit.ExitCode() != 127:
		r.failed = true
		status, ok := exit.Sys().(syscall.WaitStatus)
		r.late = stopped || bytes.Contains(r.out, []byte("panic: test timed out")) ||
			bytes.Contains(r.out, []byte("SIGXCPU")) || ok && status.Signaled()
	}
	return r
}

// idleFor is how long a process may use no processor time before it counts as stuck.
const idleFor = 30 * time.Second

// stopIdle kills a process that uses no processor time for [idleFor], and reports whether it has
// done this. It returns false when the process has ended and the channel waited is closed. Even on
// a busy machine, a process gets some time. If the system does not report a process's time,
// stopIdle kills nothing, and the tests' own time-out ends the process.
func stopIdle(p *os.Process, waited <-chan struct{}) bool {
	var before string
	since := time.Now()
	for {
		select {
		case <-waited:
			return false
		case <-time.After(2 * time.Second):
		}
		used, ok := cpuOf(p.Pid)
		if !ok || used != before {
			before, since = used, time.Now()
		}
		if time.Since(since) > idleFor {
			return p.Kill() == nil
		}
	}
}

// cpuOf returns the processor time of a process in twentieths of a second, as text. If the system
// does not report the time, it returns false.
func cpuOf(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return "", false
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	const ticks = 100 / 20
	return strconv.Itoa((user + system) / ticks), err1 == nil && err2 == nil
}
