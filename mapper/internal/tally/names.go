package tally

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// A Names estimates how many different names were added to it. Up to 1,000 names the number is
// exact, and above that it is within about 3%. It keeps only the smallest hashes of names, so its
// size is limited: the more names there are, the smaller are these hashes. The result does not
// depend on the order of the names, or on how they are divided into parts. It is stored as JSON.
type Names []uint64 // the smallest hashes, sorted

// maxNames is the largest number of names that Names counts exactly.
const maxNames = 1000

// Add adds a name. A name that was added before changes nothing.
func (n *Names) Add(name string) {
	h := sha256.Sum256([]byte(name))
	n.add(binary.BigEndian.Uint64(h[:]))
}

func (n *Names) add(hash uint64) {
	i, known := slices.BinarySearch(*n, hash)
	if known || i == maxNames {
		return
	}
	*n = slices.Insert(*n, i, hash)
	*n = (*n)[:min(len(*n), maxNames)]
}

// Merge adds all names that were added to o.
func (n *Names) Merge(o Names) {
	for _, hash := range o {
		n.add(hash)
	}
}

// Count returns how many different names were added.
func (n Names) Count() int {
	if len(n) < maxNames {
		return len(n)
	}
	const space = 1 << 64
	return int((maxNames - 1) * (space / float64(n[maxNames-1])))
}
