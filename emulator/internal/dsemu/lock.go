package dsemu

import (
	"slices"
	"time"

	"github.com/scattermap/scattermap/emulator/internal/store"
)

// With pessimistic concurrency a transaction has a shared lock on everything that it has read. Each
// commit waits for the other transactions that have read the entities that it changes. A query
// locks its whole result, including entities that would join or leave it.
//
// There is no queue. Readers go on while a commit waits, and enough of them can make it wait until
// it is aborted. Google does not document whether production is fairer.

// maxLockWait is how long a commit waits for locks before it is aborted. Google's Firestore
// emulator waits longer than 20 s.
const maxLockWait = 30 * time.Second

// lockPoll is how often a waiting commit looks for transactions that have expired.
const lockPoll = time.Second

// locks reports whether a transaction holds locks.
func (db *database) locks(tx *transaction) bool {
	return db.opts.Pessimistic && !tx.readOnly
}

// holders returns the transactions, other than tx, that have read entities that a commit will
// change. The caller has locked the database.
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

// holds reports whether the transaction has read something that a commit changes: the draft's
// entity, or a query's result to which the version after belongs.
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

// deadlocked reports whether one of the holders waits for tx, directly or indirectly.
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
