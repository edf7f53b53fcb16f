// Package testflag has the command-line flags of this module's tests.
//
//	go test ./emulator/... -run Differential -args -sequences 2000
//	go test ./mapper/... -args -seed 7
//
// Such a command passes the flags to the test binaries of all its packages. A binary that does not
// know a flag fails. So the tests of all packages below emulator/ and mapper/ import this one.
package testflag

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
)

// Sequences is the number of random sequences of calls in the differential test. This test compares
// the embedded emulators with Google's.
var Sequences = flag.Int("sequences", 12, "how many random sequences of calls are compared")

// Seeds is the number of seeds on which [Simulate] runs each test. If it is 0, each test chooses
// its own number.
var Seeds = flag.Int("seeds", 0, "how many seeds simulations try; 0: a few")

// Comparisons is the number of pairs of queries in the metamorphic test. In each pair, the answer
// of one query follows from the other's answer.
var Comparisons = flag.Int("comparisons", 600, "how many pairs of answers of the embedded Datastore are compared")

var seed = flag.Uint64("seed", 0, "the first seed of random tests; 0 is a new one")

// Tests make many short-lived worlds. They need up to a tenth less CPU time if garbage is collected
// less often. If the environment variable GOGC is set, it stays in force.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// Seed returns the first seed of a random test: the flag -seed, or a random number. If the test
// fails, its log shows the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d; replay it by -args -seed %d", first, first)
	return first
}

// larger is a line in the log of a usual run. It says that .ci/nightly runs the test with more
// seeds and larger sizes.
const larger = "left out: more seeds and larger numbers, with which .ci/nightly runs it"

// atNight is the factor by which .ci/nightly multiplies the seeds of [Simulate].
const atNight = 15

// Size returns the size of a test: short with the flag -short, night in .ci/nightly, and usual in
// all other runs.
func Size(t testing.TB, short, usual, night int) int {
	t.Helper()
	switch {
	case testing.Short():
		return short
	case nightly.Is():
		return night
	}
	t.Log(larger)
	return usual
}

// Part chooses some of many similar cases by their numbers, such as the calls that fail one at a
// time in a test. In .ci/nightly it chooses all. In other runs it chooses every nth case. The seed
// decides which case is the first.
func Part(t testing.TB, n int) (chosen func(i int) bool) {
	t.Helper()
	if nightly.Is() {
		return func(int) bool { return true }
	}
	t.Log(larger)
	first := int(Seed(t) % uint64(n))
	return func(i int) bool { return (i+first)%n == 0 }
}

// Simulate runs a test with several seeds, one after the other, and returns the number of seeds. It
// is usual in a usual run, and few with the flag -short. With the race detector, few is 1. In
// .ci/nightly it is 15 times usual. The flag [Seeds] replaces all of these.
func Simulate(t *testing.T, usual, few int, run func(t *testing.T, seed uint64)) (n int) {
	t.Helper()
	first := Seed(t)
	if raced {
		few = 1 // the race detector makes tests ten times slower
	}
	if n = *Seeds; n == 0 {
		n = Size(t, few, usual, atNight*usual)
	}
	for i := range uint64(n) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) { run(t, first+i) })
	}
	return n
}

// SideBySide makes a test that [Simulate] runs with one seed run in parallel with other tests. With
// -failfast it does nothing, because -failfast does not stop parallel tests.
func SideBySide(t *testing.T) {
	t.Helper()
	if flag.Lookup("test.failfast").Value.String() != "true" {
		t.Parallel()
	}
}

// AtOnce sets how many tests that call t.Parallel run at the same time, unless the flag -parallel
// does. It is for packages whose tests mostly wait for processes or browsers. The package's
// TestMain calls it.
func AtOnce(n int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = parallel.Value.Set(strconv.Itoa(n)) // any number is right
	}
}

// Patience is how long a test waits for an event, in real time. It is long, because the machine may
// be busy. So a test fails only if the event never comes.
const Patience = 5 * time.Minute

// Rand returns a random number generator for a test. If the test fails, its log shows the seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Sequential skips a test in runs with both -short and the race detector. It is for long tests
// without concurrency, which check numbers or forms, or simulate many deaths of processes. Other
// tests run the same code.
func Sequential(t *testing.T) {
	t.Helper()
	if raced && testing.Short() {
		t.Skip("left out: the short run of the race detector leaves out tests of numbers, of forms and of many deaths")
	}
}
