// Package testflag has the flags of tests.
//
//	go test ./emulator/... -run Differential -args -sequences 2000
//	go test ./mapper/... -args -seed 7
//
// pass them to the test binaries of all packages, and a binary that does not
// know one fails. So the tests of all packages below emulator/ and mapper/
// import this one.
package testflag

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
)

// Sequences is how many random sequences the differential test runs.
var Sequences = flag.Int("sequences", 30, "how many random sequences of calls are compared")

// Seeds is how many seeds tests of random worlds try; 0: as many as each says.
var Seeds = flag.Int("seeds", 0, "how many seeds simulations try; 0: a few")

// Comparisons is how many pairs of answers the metamorphic test compares.
var Comparisons = flag.Int("comparisons", 600, "how many pairs of answers of the embedded Datastore are compared")

var seed = flag.Uint64("seed", 0, "the first seed of random tests; 0 is a new one")

// Seed returns the first seed of a random test, which the test shows if it fails.
func Seed(t testing.TB) uint64 {
	t.Helper()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d; replay it by -args -seed %d", first, first)
	return first
}

// larger is what a usual run leaves out of the tests that ask for [Size] or [Simulate].
const larger = "left out: more seeds and larger numbers, with which .ci/nightly runs it"

// atNight is how many times as many seeds as usual [Simulate] tries in .ci/nightly.
const atNight = 15

// Size returns how large a test is: in a short run, usually, or in .ci/nightly.
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

// Simulate runs a test on some seeds, one after the other: on as many as usual, on few in a short
// run (one with the race detector), on fifteen times as many as usual in .ci/nightly, or on [Seeds].
// It returns how many these were.
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

// SideBySide has a seed of [Simulate] run beside others, unless the first failure ends all: that
// has no effect on parallel tests.
func SideBySide(t *testing.T) {
	t.Helper()
	if flag.Lookup("test.failfast").Value.String() != "true" {
		t.Parallel()
	}
}

// Patience is how long a test waits in real time for what has to come. It is no expectation: the
// machine may be busy. What comes never fails the test after it.
const Patience = 5 * time.Minute

// Rand returns a source of random numbers whose seed a failing test shows.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Sequential leaves a test out of a short run of the race detector: one that takes long, as it
// checks numbers or forms, or waits for many deaths, and has nothing of its own happen at the same
// time. Others have the same code run.
func Sequential(t *testing.T) {
	t.Helper()
	if raced && testing.Short() {
		t.Skip("left out: the short run of the race detector leaves out tests of numbers, of forms and of many deaths")
	}
}
