package tally

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// Limits of a job's counters. A user's function adds numbers under names. Under each of up to
// groups names, a job can have a count, a sum, a minimum and a maximum.
const (
	groups          = 10_000
	maxCounters     = 4 * groups
	maxCounterName  = 100     // the maximum length of a name, in bytes
	maxCounterBytes = 4 << 20 // the maximum size of all counters together as JSON, in bytes

	// MaxStored is the largest size of the counters in a job's record, in bytes. The whole record
	// may have up to 1 MiB. The limit is checked at the end of a job, when the counters of all
	// pages are added up.
	MaxStored = 640 << 10
	// MaxInPage is the largest size of the counters in the record of one page, in bytes of JSON.
	MaxInPage = 512 << 10
)

// A Counters holds sums, minimums and maximums by name. The result does not depend on the order in
// which numbers are added. If there are too many names, it drops all counters, and
// [Counters.Values] returns an error.
type Counters struct {
	sums  map[string]Sum
	bytes int  // an upper bound of the size of the counters as JSON
	over  bool // whether there were more counters than a job may have
}

// Err is wrapped by the errors that say why a job's counters can't be kept: [ErrTooMany] and
// [ErrLarge]. The text is the same for a page of entities, for a process and for the whole job.
var Err = fault.Fatal(errors.New("its counters can't be kept"))

var (
	// ErrTooMany says that a job has counters under too many names.
	ErrTooMany = fmt.Errorf("%w: the function counts under more names than the %d that a job can have, or they take "+
		"more than %d KiB, compressed; a resume goes on without counters. Count under fewer names, such as one for "+
		"many values; or have the function put what each entity adds as an entity of its own, and add those up by an "+
		"aggregation "+
		"query",
		Err, maxCounters, MaxStored>>10)
	// ErrLarge says that a counter's sum does not fit into an int64.
	ErrLarge = fmt.Errorf("%w: one of them adds up to more than an int64 holds; a resume goes on without counters", Err)
)

// CheckName returns an error if the name of a counter is invalid.
func CheckName(name string) error {
	if name == "" || len(name) > maxCounterName || !utf8.ValidString(name) {
		return fmt.Errorf("the counter name %q is empty, longer than %d bytes or not UTF-8", name, maxCounterName)
	}
	if !IsSum(name) {
		return fmt.Errorf("the counter name %q starts like the name of a minimum or a maximum: %q, %q", name, least,
			most)
	}
	return nil
}

// Add adds n to the counter with this name. A name from [Min] or [Max] is for a minimum or a
// maximum: then Add keeps the lesser or the greater one of n and the earlier number.
func (t *Counters) Add(name string, n int64) { t.addWide(name, Sum{n >> 63, uint64(n)}) }

func (t *Counters) addWide(name string, n Sum) {
	if t.over {
		return
	}
	sum, known := t.sums[name]
	if !known {
		t.bytes += counterBytes(name)
		if len(t.sums) == maxCounters || t.bytes > maxCounterBytes {
			t.Drop()
			return
		}
		if t.sums == nil {
			t.sums = make(map[string]Sum)
		}
	}
	switch {
	case !known:
		t.sums[name] = n
	case strings.HasPrefix(name, least):
		t.sums[name] = lesser(sum, n)
	case strings.HasPrefix(name, most):
		t.sums[name] = greater(sum, n)
	default:
		t.sums[name] = sum.Plus(n)
	}
}

// Prefixes in the names of counters that are not sums.
const (
	least = "min("
	most  = "max("
)

// Min returns the name of the counter that keeps the least of the numbers under a name.
func Min(name string) string { return least + name + ")" }

// Max returns the name of the counter that keeps the greatest of the numbers under a name.
func Max(name string) string { return most + name + ")" }

// Would returns the name of a counter in a rehearsal, which runs a job's function without changing
// anything. It counts an effect that the real job would have, which the argument what describes.
func Would(what string) string {
	const longest = 100 - len("would()")
	return "would(" + strings.ToValidUTF8(what[:min(len(what), longest)], "") + ")"
}

// IsSum reports whether the name of a counter is for a sum. Otherwise it is for a minimum or a
// maximum.
func IsSum(name string) bool {
	return !strings.HasPrefix(name, least) && !strings.HasPrefix(name, most)
}

func lesser(a, b Sum) Sum {
	if a.hi < b.hi || a.hi == b.hi && a.lo < b.lo {
		return a
	}
	return b
}

func greater(a, b Sum) Sum {
	if lesser(a, b) == a {
		return b
	}
	return a
}

// Drop removes all counters, and remembers that there were too many.
func (t *Counters) Drop() { *t = Counters{over: true} }

// Empty reports whether no counter was added, not even one that was dropped later.
func (t *Counters) Empty() bool { return len(t.sums) == 0 && !t.over }

// TooMany reports whether the counters were dropped because there were more than a job may have.
func (t *Counters) TooMany() bool { return t.over }

// Merge adds all counters of o to t.
func (t *Counters) Merge(o Counters) {
	if o.over {
		t.Drop()
	}
	for name, n := range o.sums {
		t.addWide(name, n)
	}
}

// Encode returns the counters as JSON for a page's record, or nil if there are none.
func (t *Counters) Encode() ([]byte, error) {
	values, err := t.Values()
	if err != nil || len(values) == 0 {
		return nil, err
	}
	text, err := json.Marshal(values)
	if err == nil && len(text) > MaxInPage {
		err = ErrTooMany
	}
	return text, err
}

// Values returns the value of each counter, by name. It returns [ErrTooMany] or [ErrLarge] if the
// counters can't be kept.
func (t *Counters) Values() (map[string]int64, error) {
	if t.over {
		return nil, ErrTooMany
	}
	if len(t.sums) == 0 {
		return nil, nil
	}
	all := make(map[string]int64, len(t.sums))
	for name, sum := range t.sums {
		if sum.hi != int64(sum.lo)>>63 {
			return nil, ErrLarge
		}
		all[name] = int64(sum.lo)
	}
	return all, nil
}

// counterBytes returns an upper bound of the size of a counter as JSON.
func counterBytes(name string) int {
	const number = len(`:-9223372036854775808,`)
	quoted, _ := json.Marshal(name) // a string always encodes
	return len(quoted) + number
}

// A Sum is an integer of 128 bits, so that no sum of counts overflows.
type Sum struct {
	hi int64
	lo uint64
}

// Plus returns the sum of two sums.
func (a Sum) Plus(b Sum) Sum {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	return Sum{a.hi + b.hi + int64(carry), lo}
}

// SumOf decodes a Sum from the 16 bytes that [Sum.Bytes] has returned.
func SumOf(b []byte) Sum {
	return Sum{int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])}
}

// Bytes encodes the sum in 16 bytes, for [SumOf].
func (a Sum) Bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(a.hi)), a.lo)
}
