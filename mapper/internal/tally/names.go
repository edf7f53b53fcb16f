package tally

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Names counts different names: exactly while they are few, and about, within some 3%, when they
// are more. It keeps the smallest hashes: the smaller these are, the more names there are. So it
// does not grow with them, and the count does not depend on the order and the parts in which they
// come. It is stored as JSON.
type Names []uint64 // sorted

// maxNames is how many names are counted exactly.
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

// Merge counts what another one has counted, too.
func (n *Names) Merge(o Names) {
	for _, hash := range o {
		n.add(hash)
	}
}

// Count returns how many names there are.
func (n Names) Count() int {
	if len(n) < maxNames {
		return len(n)
	}
	const space = 1 << 64
	return int((maxNames - 1) * (space / float64(n[maxNames-1])))
}
