package dsemu

import (
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

// How long a transaction lives, as the limits page of Datastore has it.
const (
	maxTransactionAge  = 270 * time.Second
	maxTransactionIdle = 60 * time.Second
)

// A transaction remembers what it has read until it commits.
//
// With optimistic concurrency it reads a snapshot, and conflicts if that has
// changed when it commits. With pessimistic concurrency it reads what is there,
// and whoever wants to change that waits for its end: see lock.go.
type transaction struct {
	id       string
	readOnly bool
	snapshot int64 // time of the last commit that it sees
	begun    time.Time
	used     time.Time
	aborted  bool // it conflicted, and can only be rolled back

	keys    map[string]model.Key
	queries []*scanned

	ended    chan struct{}  // closed once nobody has to wait for it
	waitsFor []*transaction // those that hold up its commit
}

// scanned is the part of a query's result that a transaction has seen.
type scanned struct {
	query   *query.Query
	to      string // sort key of the last result; empty if the query was read to its end
	checked int64  // time of the last change that was found to leave it alone
}

var (
	errTransaction = status.Error(codes.InvalidArgument, "transaction has expired or is invalid")
	errClosed      = status.Error(codes.Unavailable, "the database was reset")
	errContention  = status.Error(codes.Aborted, "too much contention on these datastore entities. please try again.")
)

// begin opens a transaction. The database is locked.
func (db *database) begin(o *pb.TransactionOptions, now time.Time) (*transaction, error) {
	tx, err := db.newTransaction(o, now)
	if err != nil {
		return nil, err
	}
	db.transactions[tx.id] = tx
	return tx, nil
}

// newTransaction returns a transaction that is not open: it can commit at once. The
// previous transaction of options is not looked at: it would raise the priority of
// the retry, and there are no priorities here.
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

// transaction returns an open transaction. The database is locked.
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

// expired reports whether the client of a transaction has gone.
func (tx *transaction) expired(now time.Time) bool {
	return now.Sub(tx.begun) > maxTransactionAge || now.Sub(tx.used) > maxTransactionIdle
}

// expireEvery is how often expired transactions are looked for: there may be
// thousands, as nothing ends those that only read.
const expireEvery = time.Second

// expire ends the transactions whose clients have gone.
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

// end closes a transaction. The database is locked.
func (db *database) end(tx *transaction) {
	delete(db.transactions, tx.id)
	tx.release()
}

// abort leaves a transaction that can only be rolled back.
func (tx *transaction) abort() {
	tx.aborted = true
	tx.release()
}

// release lets those go on that wait for the transaction.
func (tx *transaction) release() {
	tx.keys, tx.queries = nil, nil
	select {
	case <-tx.ended:
	default:
		close(tx.ended)
	}
}

// conflicts reports whether anything that the transaction read has changed
// since its snapshot. The database is locked.
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

// checked is the time of the last change that was found to leave all queries alone.
func (tx *transaction) checked() int64 {
	at := int64(math.MaxInt64)
	for _, s := range tx.queries {
		at = min(at, max(s.checked, tx.snapshot))
	}
	return at
}

// conflicts reports whether a change is one of what the transaction's queries have seen. What
// the record is changed to later is a change of its own.
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

// checkAtOnce is how many changes a commit looks at before it looks whether somebody waits.
const checkAtOnce = 64

// checkEarly looks for conflicts of a transaction that is about to commit, and pauses if
// somebody waits. What it has looked at, the commit need not look at again, which looks at the
// rest without a pause. The database is locked.
func (db *database) checkEarly(tx *transaction) {
	open := func() bool { return !db.closed && !tx.aborted && db.transactions[tx.id] == tx && len(tx.queries) > 0 }
	// Where others write faster than this looks, the commit has something left to look at.
	var at int64  // up to here all queries were looked at
	var begun int // how many changes of the commit after it were, too
	for most := 2*len(db.log) + checkAtOnce; most > 0 && open(); most -= checkAtOnce {
		if now := tx.checked(); now != at {
			at, begun = now, 0 // or somebody has queried in the transaction
		}
		rest := db.since(at)
		n := min(len(rest), begun+checkAtOnce)
		if n == begun || slices.ContainsFunc(rest[begun:n], tx.conflicts) {
			return // the commit finds the same
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

// covers reports whether a key is of what the query is over.
func (s *scanned) covers(key *pb.Key) bool {
	return s.query.Namespace == key.GetPartitionId().GetNamespaceId() &&
		(s.query.Kind == "" || s.query.Kind == key.Path[len(key.Path)-1].Kind)
}

// saw reports whether a version belongs to the part of the result that was seen.
func (s *scanned) saw(r *store.Record, v store.Version) bool {
	for _, row := range s.query.Rows(nil, r, v, "") {
		if row.SortKey > s.query.After && (!s.query.Bounded || row.SortKey <= s.query.Until) &&
			(s.to == "" || row.SortKey <= s.to) {
			return true
		}
	}
	return false
}
