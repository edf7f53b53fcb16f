package dsemu

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// Limits of a transaction's age, and of the time since its last call, from the limits page of
// Datastore.
const (
	maxTransactionAge  = 270 * time.Second
	maxTransactionIdle = 60 * time.Second
)

// A transaction records what it has read, until it commits.
//
// With optimistic concurrency, it reads a snapshot. Its commit conflicts if an entity that it has
// read was changed after the snapshot. With pessimistic concurrency, it reads the current entities.
// Others that want to change these wait until it ends: see lock.go.
type transaction struct {
	id       string
	readOnly bool
	snapshot int64 // the time of the snapshot, in microseconds
	begun    time.Time
	used     time.Time
	aborted  bool // whether the transaction was aborted, so that only a rollback is possible

	keys    map[string]model.Key
	queries []*scanned

	ended    chan struct{}  // closed when other transactions no longer have to wait for this one
	waitsFor []*transaction // the transactions whose locks the commit of this one waits for
}

// A scanned records how many of a query's results a transaction has read.
type scanned struct {
	query   *query.Query
	to      string // the sort key of the last result that was read; empty: all results were read
	checked int64  // changes up to this time were checked, and do not affect the results that were read
}

var (
	errTransaction = status.Error(codes.InvalidArgument, "transaction has expired or is invalid")
	errClosed      = status.Error(codes.Unavailable, "the database was reset")
	errContention  = status.Error(codes.Aborted, "too much contention on these datastore entities. please try again.")
)

// begin opens a transaction. The caller has locked the database.
func (db *database) begin(o *pb.TransactionOptions, now time.Time) (*transaction, error) {
	tx, err := db.newTransaction(o, now)
	if err != nil {
		return nil, err
	}
	db.transactions[tx.id] = tx
	return tx, nil
}

// newTransaction returns a transaction that is not in the database's list of open ones, so it must
// commit at once. It ignores the previous transaction in the options. In production this raises the
// priority of a retry; here there are no priorities.
func (db *database) newTransaction(o *pb.TransactionOptions, now time.Time) (*transaction, error) {
	db.expire(now)
	if db.closed {
		return nil, errClosed
	}
	tx := &transaction{
		readOnly: o.GetReadOnly() != nil,
		snapshot: db.lastCommit,
		begun:    now,
		used:     now,
		keys:     make(map[string]model.Key),
		ended:    make(chan struct{}),
	}
	if t := o.GetReadOnly().GetReadTime(); t != nil {
		var err error
		if tx.snapshot, err = db.readTime(t, now); err != nil {
			return nil, err
		}
	}
	tx.id = string(binary.BigEndian.AppendUint64([]byte("tx"), db.lastID.Add(1)))
	return tx, nil
}

// transaction returns an open transaction by its ID, or an error. The caller has locked the
// database.
func (db *database) transaction(id []byte, now time.Time) (*transaction, error) {
	db.expire(now)
	tx := db.transactions[string(id)]
	if tx != nil && tx.expired(now) {
		db.end(tx)
		tx = nil
	}
	if tx == nil || tx.aborted {
		return nil, errTransaction
	}
	tx.used = now
	return tx, nil
}

// expired reports whether a transaction is too old, or has been idle for too long.
func (tx *transaction) expired(now time.Time) bool {
	return now.Sub(tx.begun) > maxTransactionAge || now.Sub(tx.used) > maxTransactionIdle
}

// expireEvery is the time between two searches for expired transactions. There may be thousands of
// these, because clients do not end transactions that only read.
const expireEvery = time.Second

// expire ends the transactions that have expired.
func (db *database) expire(now time.Time) {
	if now.Sub(db.expiredAt) < expireEvery {
		return
	}
	db.expiredAt = now
	for _, tx := range db.transactions {
		if tx.expired(now) {
			db.end(tx)
		}
	}
}

// end closes a transaction. The caller has locked the database.
func (db *database) end(tx *transaction) {
	delete(db.transactions, tx.id)
	tx.release()
}

// abort marks a transaction as aborted. From then on, only a rollback is possible.
func (tx *transaction) abort() {
	tx.aborted = true
	tx.release()
}

// release wakes the commits that wait for the transaction.
func (tx *transaction) release() {
	tx.keys, tx.queries = nil, nil
	select {
	case <-tx.ended:
	default:
		close(tx.ended)
	}
}

// conflicts reports whether something that the transaction has read was changed after its snapshot.
// The caller has locked the database.
func (db *database) conflicts(tx *transaction) bool {
	if db.lastCommit == tx.snapshot {
		return false
	}
	for _, key := range tx.keys {
		if k := db.kind(key.Namespace, key.Kind); k != nil {
			if r, ok := k.Records.Get(key.Path); ok && r.Last.At > tx.snapshot {
				return true
			}
		}
	}
	if len(tx.queries) == 0 {
		return false
	}
	return slices.ContainsFunc(db.since(tx.checked()), tx.conflicts)
}

// checked returns the time up to which all changes were checked for all of the transaction's
// queries.
func (tx *transaction) checked() int64 {
	at := int64(math.MaxInt64)
	for _, s := range tx.queries {
		at = min(at, max(s.checked, tx.snapshot))
	}
	return at
}

// conflicts reports whether a change of a record affects what the transaction's queries have read.
// It compares the record at the snapshot with its newest version. If the record changes again, the
// caller checks that change, too.
func (tx *transaction) conflicts(c change) bool {
	key := c.record.Last.Key()
	before, existed := c.record.At(tx.snapshot)
	for _, s := range tx.queries {
		if c.at <= s.checked || !s.covers(key) {
			continue
		}
		if existed && s.saw(c.record, before) || !c.record.Last.Deleted && s.saw(c.record, c.record.Last) {
			return true
		}
	}
	return false
}

// checkAtOnce is how many changes a commit checks before it looks whether other calls wait.
const checkAtOnce = 64

// checkEarly looks for conflicts of a transaction that is about to commit. It pauses if other calls
// wait. The commit then checks only the remaining changes, without a pause. The caller has locked
// the database.
func (db *database) checkEarly(tx *transaction) {
	open := func() bool { return !db.closed && !tx.aborted && db.transactions[tx.id] == tx && len(tx.queries) > 0 }
	// If others write faster than this loop checks, some changes remain for the commit.
	var at int64  // all changes up to this time were checked for all queries
	var begun int // number of changes after at that were checked
	for most := 2*len(db.log) + checkAtOnce; most > 0 && open(); most -= checkAtOnce {
		if now := tx.checked(); now != at {
			at, begun = now, 0 // the transaction has run another query in a pause
		}
		rest := db.since(at)
		n := min(len(rest), begun+checkAtOnce)
		if n == begun || slices.ContainsFunc(rest[begun:n], tx.conflicts) {
			return // nothing is left to check, or there is a conflict, which the commit will find again
		}
		whole := n
		for n < len(rest) && whole > 0 && rest[whole-1].at == rest[n].at {
			whole--
		}
		if begun = n - whole; whole > 0 {
			at = rest[whole-1].at
			for _, s := range tx.queries {
				s.checked = max(s.checked, at)
			}
		}
		if db.mu.Wanted() {
			db.mu.Pause()
		}
	}
}

// stop records the sort key of the last result that was read; "" if none was read.
func (s *scanned) stop(last string) {
	s.to = cmp.Or(last, "\x00") // this is below all sort keys
}

// covers reports whether the entity of a key is of the query's namespace and kind.
func (s *scanned) covers(key *pb.Key) bool {
	return s.query.Namespace == key.GetPartitionId().GetNamespaceId() &&
		(s.query.Kind == "" || s.query.Kind == key.Path[len(key.Path)-1].Kind)
}

// saw reports whether a version of a record is among the results that the transaction has read.
func (s *scanned) saw(r *store.Record, v store.Version) bool {
	for _, row := range s.query.Rows(nil, r, v, "") {
		if row.SortKey >= s.query.From && (s.query.To == "" || row.SortKey < s.query.To) &&
			(s.to == "" || row.SortKey <= s.to) {
			return true
		}
	}
	return false
}
