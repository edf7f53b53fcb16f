package tally

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Names counts different names: exactly up to 1,000, and above that within about 3%. It keeps only
// the smallest hashes, since the smaller these are, the more names there are. So its size is
// limited, and the count does not depend on the order of the names or on how they are divided. It
// is stored as JSON.
type Names []uint64 // sorted

// maxNames is up to how many names are counted exactly.
const maxNames = 1000

// Add counts a name, unless it was counted before.
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

// Merge adds the names of another count.
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
