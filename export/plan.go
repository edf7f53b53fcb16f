package export

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A stretch is a half-open interval of the names of parts, which are hashes, and what its parts
// come to.
type stretch struct {
	From, To       string // an empty To is the end
	Records, Bytes int64
}

// holds reports whether a name is in the stretch.
func (s stretch) holds(name string) bool { return name >= s.From && (s.To == "" || name < s.To) }

// A size is that of a part, in the order of names.
type size struct {
	name           string
	records, bytes int64
}

// FilesFor returns the number of files for parts of a total size, if no part is larger than
// largestPart and no file may be larger than most.
func FilesFor(total, largestPart, most int64) int { return numberOf(total, largestPart, most, 0) }

// numberOf returns into how many files parts are joined: into n, if that is not 0, and otherwise
// into as few as hold them, each with up to most bytes. A part is not split, so a file may have up
// to a part more than an even share.
func numberOf(total, largest, most int64, n int) int {
	if n > 0 {
		return n
	}
	room := max(most-largest, most/2, 1)
	return int(max(1, (total+room-1)/room))
}

// even cuts parts into n stretches of about the same bytes. A part belongs to the stretch in which
// its middle lies.
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
		if s.Records == 0 && s.Bytes == 0 && i > 0 {
			s.From = p.name
		}
		s.Records += p.records
		s.Bytes += p.bytes
		before += p.bytes
	}
	return closed(all)
}

// closed has each stretch end where the next one begins that has parts. One without parts is empty.
func closed(all []stretch) []stretch {
	next := ""
	for i, s := range slices.Backward(all) {
		if i > 0 && s.From == "" { // it has no parts
			next = cmp.Or(next, lastName)
			all[i].From, all[i].To = next, next
			continue
		}
		all[i].To = next
		next = s.From
	}
	return all
}

// lastName is behind all names.
const lastName = "g"

// equal cuts the names into n stretches of equal length. They are hashes, so with a thousand parts
// in each a stretch differs from the others by some 3% (a standard deviation).
func equal(n int) []stretch {
	all := make([]stretch, n)
	for i := range all {
		if i > 0 {
			all[i].From = fmt.Sprintf("%016x", uint64(float64(i)/float64(n)*math.Exp2(64)))
		}
	}
	return closed(all)
}
