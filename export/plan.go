package export

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A stretch is an interval of names of parts, [From, To). It stands for the parts in the interval,
// and has the sums of their records and bytes. Names are hashes, so they are evenly distributed.
type stretch struct {
	From, To       string // an empty To is no bound
	Records, Bytes int64
}

// holds reports whether the part with a name is in the stretch.
func (s stretch) holds(name string) bool { return name >= s.From && (s.To == "" || name < s.To) }

// A size has the name of a part, and how large the part is.
type size struct {
	name           string
	records, bytes int64
}

// FilesFor returns how many files are needed for parts with the given total size. The argument most
// is the largest size of a file. The argument largestPart is the size of the largest part, and must
// be at most half of the argument most. All sizes are in bytes. Parts are not split, so files
// differ in size; the result allows for that. Use FilesFor to number the files of several exports
// as one set ([StartOptions].Hold).
func FilesFor(total, largestPart, most int64) int { return numberOf(total, largestPart, most, 0) }

// numberOf returns the number of files to write: n, or if n is 0, enough files that none should
// exceed the size most. The parts have the size total together, and the largest has the size
// largest. Parts are not split, so a file may exceed the average by up to one part.
func numberOf(total, largest, most int64, n int) int {
	if n > 0 {
		return n
	}
	room := max(most-largest, most/2, 1)
	return int(max(1, (total+room-1)/room))
}

// even divides parts into n stretches of about the same number of bytes. A part belongs to the
// stretch in which its middle byte lies.
func even(parts []size, n int) []stretch {
	total := int64(0)
	for _, p := range parts {
		total += p.bytes
	}
	all := make([]stretch, n)
	before := int64(0)
	for _, p := range parts {
		i := 0
		if total > 0 {
			i = min(n-1, int((float64(before)+float64(p.bytes)/2)*float64(n)/float64(total)))
		}
		s := &all[i]
		if s.From == "" && i > 0 {
			s.From = p.name
		}
		s.Records += p.records
		s.Bytes += p.bytes
		before += p.bytes
	}
	return closed(all)
}

// closed sets the end of each stretch to the start of the next stretch that has parts. A stretch
// without parts gets an empty interval.
func closed(all []stretch) []stretch {
	next := ""
	for i, s := range slices.Backward(all) {
		if i > 0 && s.From == "" { // the stretch has no parts
			next = cmp.Or(next, lastName)
			all[i].From, all[i].To = next, next
			continue
		}
		all[i].To = next
		next = s.From
	}
	return all
}

// lastName is greater than the names of all parts, which are hexadecimal.
const lastName = "g"

// equal divides all possible names into n stretches of equal length. Names are evenly distributed.
// With a thousand parts in each stretch, the sizes of stretches have a standard deviation of 3%.
func equal(n int) []stretch {
	all := make([]stretch, n)
	for i := range all {
		if i > 0 {
			all[i].From = fmt.Sprintf("%016x", uint64(float64(i)/float64(n)*math.Exp2(64)))
		}
	}
	return closed(all)
}
