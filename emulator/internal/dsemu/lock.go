package dsemu

import (
	"slices"
	"time"

	"github.com/scattermap/scattermap/emulator/internal/store"
)

// With pessimistic concurrency a transaction has a lock on what it has read,
// shared with others that read it, and everybody's commit waits for the others
// that have read what it changes. What a query has seen is locked as such:
// entities that would join or leave it, too.
//
// There is no queue: readers go on while a commit waits, and enough of them can
// have it wait in vain. Whether production is fairer is not documented.

// maxLockWait is how long a commit waits before it is aborted. Google's Firestore
// emulator waits for longer than 20 s.
const maxLockWait = 30 * time.Second

// lockPoll is how often a waiting commit looks for transactions that have
// expired meanwhile.
const lockPoll = time.Second

// locks reports whether a transaction holds locks.
func (db *database) locks(tx *transaction) bool {
	return db.opts.Pessimistic && !tx.readOnly
}

// holders returns the transactions, other than tx, that have read what a commit
// is about to change. The database is locked.
func (db *database) holders(tx *transaction, drafts []*draft, versions []store.Version) []*transaction {
	var all []*transaction
	for _, other := range db.transactions {
		if other == tx || other.aborted || !db.locks(other) {
			continue
		}
		if slices.ContainsFunc(drafts, func(d *draft) bool {
			return other.holds(d, versions[slices.Index(drafts, d)])
		}) {
			all = append(all, other)
		}
	}
	return all
}

// holds reports whether the transaction has read what a draft changes.
func (tx *transaction) holds(d *draft, after store.Version) bool {
	if !d.exists && !d.existed {
		return false
	}
	if _, ok := tx.keys[d.key.ID()]; ok {
		return true
	}
	r := &store.Record{Path: d.key.Path}
	return slices.ContainsFunc(tx.queries, func(s *scanned) bool {
		return s.covers(d.key.PB) && (d.existed && s.saw(r, d.before) || d.exists && s.saw(r, after))
	})
}

// deadlocked reports whether waiting for the holders would wait for tx itself.
func (tx *transaction) deadlocked(holders []*transaction) bool {
	seen := make(map[*transaction]bool)
	var reaches func(from []*transaction) bool
	reaches = func(from []*transaction) bool {
		for _, other := range from {
			if other == tx {
				return true
			}
			if !seen[other] {
				seen[other] = true
				if reaches(other.waitsFor) {
					return true
				}
			}
		}
		return false
	}
	return reaches(holders)
}
