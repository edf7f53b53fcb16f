// Package mutant switches generated mutations on. Package mutation rewrites conditions and
// statements as calls of these functions, each with a number. Environment variables say which
// number is on, and where a process notes which ones would have made a difference. No product code
// imports this package.
package mutant

import (
	"cmp"
	"os"
	"strconv"
)

// The environment variables of a process with mutations.
const (
	OnEnv   = "SCATTERMAP_MUTANT"  // the number that is on; unset: the process behaves as the product
	SeenEnv = "SCATTERMAP_MUTANTS" // a file: the byte at each number becomes 1 where it makes a difference
)

var (
	on   = onFrom(os.Getenv(OnEnv))
	seen = seenFrom(os.Getenv(SeenEnv)) // by number; empty: nothing is noted
)

func onFrom(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// note notes that a mutant would make a difference here, and returns whether it is on.
func note(id int) bool {
	if id < len(seen) {
		seen[id] = 1
	}
	return on == id
}

// Not negates a condition.
func Not(id int, c bool) bool { return c != note(id) }

// Never makes a condition false.
func Never(id int, c bool) bool { return c && !note(id) }

// Always makes a condition true.
func Always(id int, c bool) bool { return c || note(id) }

// Less is a < b; mutated, a <= b.
func Less[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && note(id) }

// AtMost is a <= b; mutated, a < b.
func AtMost[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && !note(id) }

// More is a > b; mutated, a >= b.
func More[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && note(id) }

// AtLeast is a >= b; mutated, a > b.
func AtLeast[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && !note(id) }

// Unequal is a != b. The first mutant is a < b, and the second one a > b.
func Unequal[T cmp.Ordered](id int, a, b T) bool {
	return a != b && (a <= b || !note(id)) && (a >= b || !note(id+1))
}

// Equal is a == b. The first mutant is a >= b, and the second one a <= b.
func Equal[T cmp.Ordered](id int, a, b T) bool {
	return a == b || a > b && note(id) || a < b && note(id+1)
}

// NoCase returns a value of a switch. Mutated, it returns another one if the value equals the tag.
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

// AnyCase returns a value of a switch; mutated, the tag.
func AnyCase[T comparable](id int, tag, value T) T {
	if tag != value && note(id) {
		return tag
	}
	return value
}

// Do reports whether a statement is run.
func Do(id int) bool { return !note(id) }

// Step runs a step. Mutated, it leaves the step out, as if it had succeeded.
func Step(id int, step func() error) error {
	if note(id) {
		return nil
	}
	return step()
}
