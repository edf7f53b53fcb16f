package dsemu

import (
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// maxResponse bounds the entities of one answer, in bytes. Production defers
// the rest of a lookup too; the Go client takes up to 4 MiB.
const maxResponse = 3 << 20

// A view is what a read sees: a time, and the transaction that has to remember
// the read, if there is one.
type view struct {
	at    int64
	tx    *transaction
	begun []byte // the transaction's id if this read began it
}

// view resolves a read's options. The database is locked.
func (db *database) view(o *pb.ReadOptions, now time.Time) (view, error) {
	switch c := o.GetConsistencyType().(type) {
	case *pb.ReadOptions_Transaction:
		tx, err := db.transaction(c.Transaction, now)
		if err != nil {
			return view{}, err
		}
		return view{at: tx.snapshot, tx: tx}, nil
	case *pb.ReadOptions_NewTransaction:
		tx, err := db.begin(c.NewTransaction, now)
		if err != nil {
			return view{}, err
		}
		return view{at: tx.snapshot, tx: tx, begun: []byte(tx.id)}, nil
	case *pb.ReadOptions_ReadTime:
		return view{}, unimplemented("read_time")
	default:
		return view{at: db.lastCommit}, nil
	}
}

func (db *database) lookup(keys []storedKey, o *pb.ReadOptions) (*pb.LookupResponse, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	view, err := db.view(o, time.Now())
	if err != nil {
		return nil, err
	}
	resp := &pb.LookupResponse{Transaction: view.begun, ReadTime: microTime(view.at)}
	size := 0
	for i, key := range keys {
		if size > maxResponse {
			for _, rest := range keys[i:] {
				resp.Deferred = append(resp.Deferred, rest.pb)
			}
			break
		}
		if view.tx != nil {
			view.tx.keys[key.id()] = key
		}
		v, ok := db.get(key, view.at)
		if !ok {
			resp.Missing = append(resp.Missing, &pb.EntityResult{Entity: &pb.Entity{Key: key.pb}, Version: view.at})
			continue
		}
		size += len(v.wire)
		resp.Found = append(resp.Found, v.result(false))
	}
	return resp, nil
}

func (db *database) runQuery(q *query, o *pb.ReadOptions) (*pb.RunQueryResponse, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	view, err := db.view(o, time.Now())
	if err != nil {
		return nil, err
	}
	k := db.prepare(q)
	batch := &pb.QueryResultBatch{
		EntityResultType: pb.EntityResult_FULL,
		MoreResults:      pb.QueryResultBatch_NO_MORE_RESULTS,
		ReadTime:         microTime(view.at),
		SnapshotVersion:  view.at,
	}
	if q.keysOnly {
		batch.EntityResultType = pb.EntityResult_KEY_ONLY
	}
	if q.until != "" {
		batch.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_CURSOR
	}
	size, last := 0, q.after
	stopped := false
	q.scan(k, view.at, func(h hit) bool {
		switch n := len(batch.EntityResults); {
		case n == q.limit:
			batch.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_LIMIT
			stopped = true
			return false
		case n == db.opts.Batch || size > maxResponse:
			batch.MoreResults = pb.QueryResultBatch_NOT_FINISHED
			stopped = true
			return false
		}
		last = h.sortKey
		if int(batch.SkippedResults) < q.offset {
			batch.SkippedResults++
			batch.SkippedCursor = q.cursor(h.sortKey)
			return true
		}
		r := h.version.result(q.keysOnly)
		r.Cursor = q.cursor(h.sortKey)
		size += len(h.version.wire)
		batch.EntityResults = append(batch.EntityResults, r)
		return true
	})
	batch.EndCursor = q.cursor(last)
	if view.tx != nil {
		seen := scanned{query: q}
		if stopped {
			seen.to = last
		}
		view.tx.queries = append(view.tx.queries, seen)
	}
	return &pb.RunQueryResponse{Batch: batch, Transaction: view.begun}, nil
}

// prepare returns the query's kind, with the index that its scan will use. The
// database is locked.
func (db *database) prepare(q *query) *kind {
	k := db.kind(q.namespace, q.kind)
	if k == nil {
		return nil
	}
	if property, ok := q.property(); ok {
		k.buildIndex(property)
	}
	return k
}
