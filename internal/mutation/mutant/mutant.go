// Package mutant has the functions that mutated code calls. Package mutation replaces conditions
// and statements by calls of these functions, each with a mutant's number. A call behaves as the
// original code, unless its mutant is on.
//
// One environment variable says which mutant is on. Another one names a file in which the process
// records the mutants that would have made a difference. No product code imports this package.
package mutant

import (
	"cmp"
	"os"
	"strconv"
)

// The environment variables that control the mutants in a process.
const (
	// the number of the mutant that is on; if it is unset, none is on
	OnEnv = "SCATTERMAP_MUTANT"
	// the path of a file with a byte for each mutant, by its number; the byte becomes 1 when the
	// mutant would make a difference
	SeenEnv = "SCATTERMAP_MUTANTS"
)

var (
	on = onFrom(os.Getenv(OnEnv))
	// seen has a byte for each mutant, by its number. If it is empty, nothing is recorded.
	seen = seenFrom(os.Getenv(SeenEnv))
)

func onFrom(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// note records that a mutant would make a difference here. It reports whether the mutant is on.
func note(id int) bool {
	if id < len(seen) {
		seen[id] = 1
	}
	return on == id
}

// Not returns c. If mutant id is on, it returns the negation of c.
func Not(id int, c bool) bool { return c != note(id) }

// Never returns c, or false if mutant id is on.
func Never(id int, c bool) bool { return c && !note(id) }

// Always returns c, or true if mutant id is on.
func Always(id int, c bool) bool { return c || note(id) }

// Less returns a < b. If mutant id is on, it returns a <= b.
func Less[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && note(id) }

// AtMost returns a <= b. If mutant id is on, it returns a < b.
func AtMost[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && !note(id) }

// More returns a > b. If mutant id is on, it returns a >= b.
func More[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && note(id) }

// AtLeast returns a >= b. If mutant id is on, it returns a > b.
func AtLeast[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && !note(id) }

// Unequal returns a != b. If mutant id is on, it returns a < b. If mutant id+1 is on, it returns a
// > b.
func Unequal[T cmp.Ordered](id int, a, b T) bool {
	return a != b && (a <= b || !note(id)) && (a >= b || !note(id+1))
}

// Equal returns a == b. If mutant id is on, it returns a >= b. If mutant id+1 is on, it returns a
// <= b.
func Equal[T cmp.Ordered](id int, a, b T) bool {
	return a == b || a > b && note(id) || a < b && note(id+1)
}

// NoCase returns the value of a case in a switch over tag. If mutant id is on and the value equals
// tag, it returns another value. So the case is never taken.
func NoCase[T ~string](id int, tag, value T) T {
	if tag == value && note(id) {
		return value + "\x00"
	}
	return value
}

// NoNumber is NoCase for numbers.
func NoNumber[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint32](id int, tag, value T) T {
	if tag == value && note(id) {
		return ^value
	}
	return value
}

// AnyCase returns the value of a case in a switch over tag. If mutant id is on, it returns tag. So
// the case is always taken.
func AnyCase[T comparable](id int, tag, value T) T {
	if tag != value && note(id) {
		return tag
	}
	return value
}

// Do returns true, so that a statement runs. If mutant id is on, it returns false.
func Do(id int) bool { return !note(id) }

// Step calls step and returns its error. If mutant id is on, it returns nil without a call, as if
// the step had succeeded.
func Step(id int, step func() error) error {
	if note(id) {
		return nil
	}
	return step()
}
