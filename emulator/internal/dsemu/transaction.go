package dsemu

import (
	"encoding/binary"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How long a transaction lives, as the limits page of Datastore has it.
const (
	maxTransactionAge  = 270 * time.Second
	maxTransactionIdle = 60 * time.Second
)

// A transaction reads a snapshot, and remembers what it read until it commits.
type transaction struct {
	id       string
	readOnly bool
	snapshot int64 // time of the last commit that it sees
	begun    time.Time
	used     time.Time
	aborted  bool // it conflicted, and can only be rolled back

	keys    map[string]storedKey
	queries []scanned
}

// scanned is the part of a query's result that a transaction has seen.
type scanned struct {
	query *query
	to    string // sort key of the last result; empty if the query was read to its end
}

var errTransaction = status.Error(codes.InvalidArgument, "transaction has expired or is invalid")

// begin opens a transaction. The database is locked.
func (db *database) begin(o *pb.TransactionOptions, now time.Time) (*transaction, error) {
	if o.GetReadOnly().GetReadTime() != nil {
		return nil, status.Error(codes.Unimplemented, "read_time is not served yet")
	}
	db.expire(now)
	db.lastID++
	tx := &transaction{
		id:       string(binary.BigEndian.AppendUint64([]byte("tx"), db.lastID)),
		readOnly: o.GetReadOnly() != nil,
		snapshot: db.lastCommit,
		begun:    now,
		used:     now,
		keys:     make(map[string]storedKey),
	}
	db.transactions[tx.id] = tx
	return tx, nil
}

// transaction returns an open transaction. The database is locked.
func (db *database) transaction(id []byte, now time.Time) (*transaction, error) {
	db.expire(now)
	tx := db.transactions[string(id)]
	if tx == nil || tx.aborted {
		return nil, errTransaction
	}
	tx.used = now
	return tx, nil
}

// expire ends the transactions whose clients have gone.
func (db *database) expire(now time.Time) {
	for id, tx := range db.transactions {
		if now.Sub(tx.begun) > maxTransactionAge || now.Sub(tx.used) > maxTransactionIdle {
			delete(db.transactions, id)
		}
	}
}

// conflicts reports whether anything that the transaction read has changed
// since its snapshot. The database is locked.
func (db *database) conflicts(tx *transaction) bool {
	if db.lastCommit == tx.snapshot {
		return false
	}
	for _, key := range tx.keys {
		if k := db.kind(key.namespace, key.kind); k != nil {
			if r, ok := k.records.Get(key.path); ok && r.last.at > tx.snapshot {
				return true
			}
		}
	}
	for _, s := range tx.queries {
		k := db.kind(s.query.namespace, s.query.kind)
		for _, c := range db.log {
			if c.at <= tx.snapshot || c.kind != k {
				continue
			}
			before, existed := c.record.at(tx.snapshot)
			if existed && s.saw(c.record, before) || !c.record.last.deleted && s.saw(c.record, c.record.last) {
				return true
			}
		}
	}
	return false
}

// saw reports whether a version belongs to the part of the result that was seen.
func (s scanned) saw(r *record, v version) bool {
	key, ok := s.query.match(r, v)
	return ok && key > s.query.after &&
		(s.query.until == "" || key <= s.query.until) && (s.to == "" || key <= s.to)
}
