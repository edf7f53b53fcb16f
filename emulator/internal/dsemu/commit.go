package dsemu

import (
	"context"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// Limits of a commit, from the limits page of Datastore.
const (
	maxEntity  = 1048572  // the maximum size of an entity in bytes
	maxRequest = 10 << 20 // the maximum size of a request in bytes
)

// commit applies all of a commit's mutations, or none. With pessimistic concurrency it waits for
// the transactions that have read the entities that it changes.
func (db *database) commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	if size := proto.Size(req); size > maxRequest {
		return nil, model.Invalid("Request payload size is %d bytes, above the limit of %d.", size, maxRequest)
	}
	begun := time.Now()
	db.checkFirst(req, begun)
	for {
		resp, holder, err := db.tryCommit(req, time.Now())
		if holder == nil {
			db.tidy()
			return resp, err
		}
		if time.Since(begun) >= maxLockWait {
			db.giveUp(req)
			return nil, errContention
		}
		select {
		case <-holder.ended:
		case <-time.After(lockPoll):
		case <-ctx.Done():
			db.giveUp(req)
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// checkFirst starts a transactional commit: it looks for conflicts, with pauses for other callers.
// The commit itself does not pause, and then has little left to check. See [database.checkEarly].
func (db *database) checkFirst(req *pb.CommitRequest, now time.Time) {
	db.mu.Lock()
	defer db.mu.Unlock()
	tx := db.transactions[string(req.GetTransaction())]
	if tx == nil || tx.expired(now) || tx.aborted || tx.readOnly || db.locks(tx) {
		return
	}
	tx.used = now
	db.checkEarly(tx)
}

// giveUp aborts a transaction whose commit has waited too long for locks.
func (db *database) giveUp(req *pb.CommitRequest) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if tx := db.transactions[string(req.GetTransaction())]; tx != nil {
		tx.abort()
	}
}

// tryCommit carries out a commit. If another transaction holds a lock on an entity of the commit,
// tryCommit changes nothing and returns that transaction. The caller waits for its end, and tries
// again.
func (db *database) tryCommit(req *pb.CommitRequest, now time.Time) (*pb.CommitResponse, *transaction, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return nil, nil, errClosed
	}
	var tx *transaction
	var err error
	switch req.Mode {
	case pb.CommitRequest_TRANSACTIONAL, pb.CommitRequest_MODE_UNSPECIFIED:
		tx, err = db.committing(req, now)
	case pb.CommitRequest_NON_TRANSACTIONAL:
		db.expire(now)
		if req.TransactionSelector != nil {
			err = model.Invalid("a non-transactional commit names a transaction")
		}
	default:
		err = model.Invalid("there is no mode %d of a commit", req.Mode)
	}
	if err != nil {
		return nil, nil, err
	}
	drafts, checked, err := db.check(tx, req.Mutations, now)
	if err != nil {
		return nil, nil, err // the transaction stays open
	}
	resp, holder, err := db.apply(tx, drafts, checked)
	switch {
	case tx == nil || holder != nil:
	case err != nil:
		tx.abort() // a client can still roll it back
	default:
		db.end(tx)
	}
	return resp, holder, err
}

// committing returns the transaction that the request of a commit names, or a new one for a
// single-use transaction. The caller has locked the database.
func (db *database) committing(req *pb.CommitRequest, now time.Time) (*transaction, error) {
	switch selector := req.TransactionSelector.(type) {
	case *pb.CommitRequest_Transaction:
		return db.transaction(selector.Transaction, now)
	case *pb.CommitRequest_SingleUseTransaction:
		if selector.SingleUseTransaction.GetReadOnly() != nil {
			return nil, model.Invalid("a single-use transaction is read-only, so a commit has nothing to do")
		}
		return db.newTransaction(selector.SingleUseTransaction, now)
	default:
		return nil, model.Invalid("a transactional commit names no transaction")
	}
}

// check checks the parts of mutations that do not depend on stored entities. The parameter tx is
// nil if the commit is not transactional. The caller has locked the database.
func (db *database) check(tx *transaction, mutations []*pb.Mutation, now time.Time) (*draftSet, []mutation, error) {
	if tx != nil && tx.readOnly && len(mutations) > 0 {
		return nil, nil, model.Invalid("Cannot modify entities in a read-only transaction.")
	}
	drafts := &draftSet{db: db, byID: make(map[string]*draft), atomic: tx != nil, at: db.nextCommit(now)}
	checked := make([]mutation, len(mutations))
	var err error
	for i, m := range mutations {
		if checked[i], err = drafts.check(m); err != nil {
			return nil, nil, err
		}
	}
	return drafts, checked, nil
}

// apply applies all mutations of a commit, or none. The parameter tx is nil if the commit is not
// transactional. If another transaction holds a lock on an entity of the commit, apply changes
// nothing and returns that transaction. The caller has locked the database.
func (db *database) apply(
	tx *transaction, drafts *draftSet, checked []mutation,
) (*pb.CommitResponse, *transaction, error) {
	if tx != nil && !tx.readOnly && !db.locks(tx) && db.conflicts(tx) {
		return nil, nil, errContention
	}
	results := make([]applied, len(checked))
	var err error
	for i, m := range checked {
		if results[i], err = drafts.apply(m); err != nil {
			return nil, nil, err
		}
	}
	versions, err := drafts.versions()
	if err != nil {
		return nil, nil, err
	}
	if db.opts.Pessimistic {
		if holders := db.holders(tx, drafts.order, versions); len(holders) > 0 {
			if tx != nil {
				if tx.deadlocked(holders) {
					return nil, nil, errContention
				}
				tx.waitsFor = holders
			}
			return nil, holders[0], nil
		}
	}
	at := drafts.at
	db.write(drafts.order, versions, at)
	resp := &pb.CommitResponse{IndexUpdates: drafts.indexUpdates()}
	if tx != nil {
		resp.CommitTime = entity.Time(at)
	}
	for _, a := range results {
		resp.MutationResults = append(resp.MutationResults, a.result(at))
	}
	return resp, nil, nil
}

// write stores a new version for each draft that is changed. The versions are in the order of the
// drafts. The parameter at is the time of the commit, in microseconds since 1970. The caller has
// locked the database.
func (db *database) write(drafts []*draft, versions []store.Version, at int64) {
	for i, d := range drafts {
		if !d.changed || !d.exists && !d.existed {
			continue
		}
		k := db.addKind(d.key.Namespace, d.key.Kind)
		r := k.Put(d.key, versions[i], db.opts.Scatter)
		db.log = append(db.log, change{at: at, kind: k, record: r})
	}
	db.lastCommit = at
	db.boundIndexes()
}
