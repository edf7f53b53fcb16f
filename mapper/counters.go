package mapper

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf8"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// Bounds of a job's counters, which keep the record of the job, and those of its pages, below the
// 1 MiB of an entity.
const (
	maxCounters     = 10_000
	maxCounterName  = 100       // bytes
	maxCounterBytes = 512 << 10 // of all names and numbers together, as JSON
)

// A tally adds up counters by name. The result does not depend on the order in which they are
// added. One that has too many of them keeps none, and says so.
type tally struct {
	sums  map[string]wide
	bytes int  // that they take as JSON, at most
	over  bool // there are more than a job can have
}

// errCounters says that a job's counters can't be kept. It is the same for a page, for what a
// process has seen of a job, and for the whole job.
var errCounters = fault.Fatal(errors.New("its counters can't be kept"))

var (
	errTooManyCounters = fmt.Errorf("%w: the function counts under more names than the %d that a job can have, or they take more than %d KiB; Resume goes on without counters",
		errCounters, maxCounters, maxCounterBytes>>10)
	errLargeCounter = fmt.Errorf("%w: one of them adds up to more than an int64 holds; Resume goes on without counters", errCounters)
)

// checkCounter returns what is wrong with the name of a counter.
func checkCounter(name string) error {
	if name == "" || len(name) > maxCounterName || !utf8.ValidString(name) {
		return fmt.Errorf("the counter name %q is empty, longer than %d bytes or not UTF-8", name, maxCounterName)
	}
	return nil
}

func (t *tally) add(name string, n int64) { t.addWide(name, wide{n >> 63, uint64(n)}) }

func (t *tally) addWide(name string, n wide) {
	if t.over {
		return
	}
	sum, known := t.sums[name]
	if !known {
		t.bytes += counterBytes(name)
		if len(t.sums) == maxCounters || t.bytes > maxCounterBytes {
			t.drop()
			return
		}
		if t.sums == nil {
			t.sums = make(map[string]wide)
		}
	}
	t.sums[name] = sum.plus(n)
}

// drop keeps no more than that there are too many.
func (t *tally) drop() { *t = tally{over: true} }

// merge adds what another tally has.
func (t *tally) merge(o tally) {
	if o.over {
		t.drop()
	}
	for name, n := range o.sums {
		t.addWide(name, n)
	}
}

// counters returns the sums, if they can be kept.
func (t *tally) counters() (map[string]int64, error) {
	if t.over {
		return nil, errTooManyCounters
	}
	if len(t.sums) == 0 {
		return nil, nil
	}
	all := make(map[string]int64, len(t.sums))
	for name, sum := range t.sums {
		if sum.hi != int64(sum.lo)>>63 {
			return nil, errLargeCounter
		}
		all[name] = int64(sum.lo)
	}
	return all, nil
}

// counterBytes returns how many bytes a counter takes as JSON, at most.
func counterBytes(name string) int {
	const number = len(`:-9223372036854775808,`)
	quoted, _ := json.Marshal(name) // a string encodes
	return len(quoted) + number
}

// wide is an integer of 128 bits, which no number of counts overflows.
type wide struct {
	hi int64
	lo uint64
}

func (a wide) plus(b wide) wide {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	return wide{a.hi + b.hi + int64(carry), lo}
}
