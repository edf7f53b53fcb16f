package dsemu

import (
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const maxEntity = 1048572 // bytes, as the limits page of Datastore has it

func (db *database) commit(req *pb.CommitRequest) (*pb.CommitResponse, error) {
	atomic := req.Mode == pb.CommitRequest_TRANSACTIONAL
	if !atomic && req.Mode != pb.CommitRequest_NON_TRANSACTIONAL {
		return nil, invalid("the mode of the commit is not given")
	}
	now := time.Now()
	db.mu.Lock()
	defer db.mu.Unlock()
	if !atomic {
		if req.TransactionSelector != nil {
			return nil, invalid("a non-transactional commit names a transaction")
		}
		return db.apply(req.Mutations, false, now)
	}
	tx, err := db.committing(req, now)
	if err != nil {
		return nil, err
	}
	tx.aborted = true // if anything goes wrong it can still be rolled back
	switch {
	case tx.readOnly && len(req.Mutations) > 0:
		return nil, invalid("a read-only transaction can't write")
	case !tx.readOnly && db.conflicts(tx):
		return nil, status.Error(codes.Aborted, "too much contention on these datastore entities. please try again.")
	}
	resp, err := db.apply(req.Mutations, true, now)
	if err == nil {
		delete(db.transactions, tx.id)
	}
	return resp, err
}

// apply writes mutations, all or none of them. The database is locked.
func (db *database) apply(mutations []*pb.Mutation, atomic bool, now time.Time) (*pb.CommitResponse, error) {
	drafts := &draftSet{db: db, byID: make(map[string]*draft), atomic: atomic}
	results := make([]*draft, len(mutations))
	resp := new(pb.CommitResponse)
	for i, m := range mutations {
		d, completed, err := drafts.apply(m)
		if err != nil {
			return nil, err
		}
		results[i] = d
		result := new(pb.MutationResult)
		if completed {
			result.Key = d.key.pb
		}
		resp.MutationResults = append(resp.MutationResults, result)
	}
	at, err := db.write(drafts.order, now)
	if err != nil {
		return nil, err
	}
	for i, d := range results {
		r := resp.MutationResults[i]
		r.Version = at
		if d.exists {
			r.UpdateTime = microTime(at)
			r.CreateTime = microTime(d.created(at))
		}
	}
	resp.CommitTime = microTime(at)
	resp.IndexUpdates = int32(len(drafts.order))
	return resp, nil
}

// committing returns the transaction that a commit names. The database is
// locked.
func (db *database) committing(req *pb.CommitRequest, now time.Time) (*transaction, error) {
	switch selector := req.TransactionSelector.(type) {
	case *pb.CommitRequest_Transaction:
		return db.transaction(selector.Transaction, now)
	case *pb.CommitRequest_SingleUseTransaction:
		return db.begin(selector.SingleUseTransaction, now)
	default:
		return nil, invalid("a transactional commit names no transaction")
	}
}

func (d *draft) created(at int64) int64 {
	if d.existed {
		return d.before.created
	}
	return at
}

// write makes the drafts the newest versions. The database is locked.
func (db *database) write(drafts []*draft, now time.Time) (at int64, err error) {
	at = db.nextCommit(now)
	versions := make([]version, len(drafts))
	for i, d := range drafts {
		v := version{at: at, created: d.created(at), deleted: !d.exists}
		if v.wire, v.keyLen, err = encode(d.key.pb, d.properties); err != nil {
			return 0, err
		}
		if len(v.wire) > maxEntity {
			return 0, invalid("The entity %v is %d bytes, above the maximum of %d.", d.key.pb.Path, len(v.wire), maxEntity)
		}
		versions[i] = v
	}
	for i, d := range drafts {
		if !d.exists && !d.existed {
			continue
		}
		k := db.addKind(d.key.namespace, d.key.kind)
		r := k.put(d.key, versions[i], db.opts.Scatter)
		db.log = append(db.log, change{at: at, kind: k, record: r})
	}
	db.lastCommit = at
	db.trim()
	return at, nil
}
