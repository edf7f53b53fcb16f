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
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
)

// Sequences is the number of random sequences of calls that the differential test runs. It compares
// the answers of the embedded emulators with Google's.
var Sequences = flag.Int("sequences", 30, "how many random sequences of calls are compared")

// Seeds is the number of seeds on which [Simulate] runs each test. With 0, each test has its own
// number.
var Seeds = flag.Int("seeds", 0, "how many seeds simulations try; 0: a few")

// Comparisons is the number of pairs of queries whose answers the metamorphic test compares. In
// each pair, one answer follows from the other.
var Comparisons = flag.Int("comparisons", 600, "how many pairs of answers of the embedded Datastore are compared")

var seed = flag.Uint64("seed", 0, "the first seed of random tests; 0 is a new one")

// Seed returns the first seed of a random test, from the flag -seed if it is set. If the test
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

// larger is the text in a usual run's log for the seeds and sizes that only .ci/nightly runs.
const larger = "left out: more seeds and larger numbers, with which .ci/nightly runs it"

// atNight is the factor by which .ci/nightly multiplies the seeds of [Simulate].
const atNight = 15

// Size returns the size for a test: short in a short run, night in .ci/nightly, and otherwise
// usual.
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

// Simulate runs a test on several seeds, one after the other, and returns the number of seeds. This
// is few in a short run (one with the race detector), fifteen times usual in .ci/nightly, and
// otherwise usual. The flag [Seeds] overrides it.
func Simulate(t *testing.T, usual, few int, run func(t *testing.T, seed uint64)) (n int) {
	t.Helper()
	first := Seed(t)
	if raced {
		few = 1 // it takes ten times as long
	}
	if n = *Seeds; n == 0 {
		n = Size(t, few, usual, atNight*usual)
	}
	for i := range uint64(n) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) { run(t, first+i) })
	}
	return n
}

// SideBySide makes a test on one seed of [Simulate] run in parallel with others. With -failfast it
// does nothing, because -failfast does not stop parallel tests.
func SideBySide(t *testing.T) {
	t.Helper()
	if flag.Lookup("test.failfast").Value.String() != "true" {
		t.Parallel()
	}
}

// Patience is how long a test waits in real time for an event. It is long, because the machine may
// be busy: a test fails only if the event does not come at all.
const Patience = 5 * time.Minute

// Rand returns a source of random numbers. A failing test shows its seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Sequential skips a test in a short run of the race detector. It is for long tests that run
// nothing concurrently: they check numbers or forms, or wait for many deaths. Other tests run the
// same code.
func Sequential(t *testing.T) {
	t.Helper()
	if raced && testing.Short() {
		t.Skip("left out: the short run of the race detector leaves out tests of numbers, of forms and of many deaths")
	}
}
