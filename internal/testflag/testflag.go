// Package testflag has the flags of tests.
//
//	go test ./emulator/... -run Differential -args -sequences 2000
//	go test ./mapper/... -args -seed 7
//
// These commands pass the flags to the test binaries of all packages. A binary that does not know a
// flag fails. So the tests of all packages below emulator/ and mapper/ import this one.
package testflag

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
)

// Sequences is the number of random sequences of the differential test.
var Sequences = flag.Int("sequences", 30, "how many random sequences of calls are compared")

// Seeds is the number of seeds that [Simulate] tries. With 0 it tries each test's own number.
var Seeds = flag.Int("seeds", 0, "how many seeds simulations try; 0: a few")

// Comparisons is the number of pairs of answers that the metamorphic test compares.
var Comparisons = flag.Int("comparisons", 600, "how many pairs of answers of the embedded Datastore are compared")

var seed = flag.Uint64("seed", 0, "the first seed of random tests; 0 is a new one")

// Seed returns the first seed of a random test. A failing test shows it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d; replay it by -args -seed %d", first, first)
	return first
}

// larger describes the part of tests with [Size] or [Simulate] that a usual run leaves out.
const larger = "left out: more seeds and larger numbers, with which .ci/nightly runs it"

// atNight is the factor of seeds that [Simulate] tries in .ci/nightly.
const atNight = 15

// Size returns the size of a test: for a short run, a usual one, or .ci/nightly.
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

// Simulate runs a test on several seeds, one after the other, and returns their number. It runs
// usual seeds, few in a short run (one with the race detector), fifteen times usual in .ci/nightly,
// or [Seeds].
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

// SideBySide lets a seed of [Simulate] run in parallel with others, unless -failfast is set, which
// has no effect on parallel tests.
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

// Sequential skips a test in a short run of the race detector. It is for tests that take long and
// run nothing concurrent of their own: they check numbers or forms, or wait for many deaths. Other
// tests run the same code.
func Sequential(t *testing.T) {
	t.Helper()
	if raced && testing.Short() {
		t.Skip("left out: the short run of the race detector leaves out tests of numbers, of forms and of many deaths")
	}
}
