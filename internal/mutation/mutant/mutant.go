// Package mutant has the switch of generated mutations: package mutation rewrites conditions and
// statements as calls of its functions, each with a number. The environment says which number is
// on, if any, and where a process notes which ones would have made a difference. No product code
// imports it.
package mutant

import (
	"cmp"
	"os"
	"strconv"
)

// Environment variables of a process with mutations.
const (
	OnEnv   = "SCATTERMAP_MUTANT"  // the number that is on; none: the process behaves as the product
	SeenEnv = "SCATTERMAP_MUTANTS" // a file with a byte for each number, which becomes 1 where it would differ
)

var (
	on   = onFrom(os.Getenv(OnEnv))
	seen = seenFrom(os.Getenv(SeenEnv)) // by number; none: nobody asks
)

func onFrom(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// note notes that a mutant would differ here, and returns whether it is on.
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

// Less is a < b, or a <= b.
func Less[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && note(id) }

// AtMost is a <= b, or a < b.
func AtMost[T cmp.Ordered](id int, a, b T) bool { return a < b || a == b && !note(id) }

// More is a > b, or a >= b.
func More[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && note(id) }

// AtLeast is a >= b, or a > b.
func AtLeast[T cmp.Ordered](id int, a, b T) bool { return a > b || a == b && !note(id) }

// Unequal is a != b; or with the first mutant a < b, and with the second one a > b.
func Unequal[T cmp.Ordered](id int, a, b T) bool {
	return a != b && (a <= b || !note(id)) && (a >= b || !note(id+1))
}

// Equal is a == b; or with the first mutant a >= b, and with the second one a <= b.
func Equal[T cmp.Ordered](id int, a, b T) bool {
	return a == b || a > b && note(id) || a < b && note(id+1)
}

// NoCase returns a value of a switch, or another one where that is the tag's.
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

// AnyCase returns a value of a switch, or the tag.
func AnyCase[T comparable](id int, tag, value T) T {
	if tag != value && note(id) {
		return tag
	}
	return value
}

// Do reports whether a statement is carried out.
func Do(id int) bool { return !note(id) }

// Step carries out a step, or leaves it out, as if it had succeeded.
func Step(id int, step func() error) error {
	if note(id) {
		return nil
	}
	return step()
}
