package dsemu

import (
	"slices"
	"time"

	"github.com/scattermap/scattermap/emulator/internal/store"
)

// With pessimistic concurrency, a transaction has a shared lock on everything that it has read. A
// commit waits until no other transaction has a lock on an entity that it changes. A query locks
// its whole result. This includes entities that the commit would add to the result, or remove from
// it.
//
// Waiting commits do not form a queue. While a commit waits, other transactions can read its
// entities and get locks, too. If this goes on for too long, the commit is aborted. Google does not
// document whether production is fairer.

// maxLockWait is how long a commit waits for locks before it is aborted. Google's Firestore
// emulator waits longer than 20 s.
const maxLockWait = 30 * time.Second

// lockPoll is how often a waiting commit looks for transactions that have expired.
const lockPoll = time.Second

// locks reports whether a transaction holds locks. This is so if concurrency is pessimistic and the
// transaction may write.
func (db *database) locks(tx *transaction) bool {
	return db.opts.Pessimistic && !tx.readOnly
}

// holders returns the other transactions that hold a lock on an entity that the commit of tx
// changes. The caller has locked the database.
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

// holds reports whether the transaction has a lock in the way of a commit. That is, the transaction
// has read the draft's entity, or a query whose result contains the entity before or after the
// commit.
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
