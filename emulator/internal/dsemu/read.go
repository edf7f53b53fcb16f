package dsemu

import (
	"context"
	"math"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/metadata"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// maxResponse is the largest size of the results in one answer, in bytes. It is a little less than
// 4 MiB, the largest message that the official clients accept. The rest of a lookup is answered as
// deferred, as in production.
const maxResponse = 4<<20 - 64<<10

// A view is the state that a read sees, given by a time. If the read belongs to a transaction that
// may conflict, the view has the transaction, which records the read.
type view struct {
	at    int64
	tx    *transaction
	begun []byte // the ID of the transaction that this read started; nil if it started none
}

// view returns the view for a request's read options. The caller has locked the database.
func (db *database) view(o *pb.ReadOptions, now time.Time) (view, error) {
	if db.closed {
		return view{}, errClosed
	}
	if now.Sub(db.trimmedAt) > time.Second {
		db.trim(now) // without commits, nothing else would call trim
	}
	var tx *transaction
	var err error
	v := view{at: db.lastCommit}
	switch c := o.GetConsistencyType().(type) {
	case *pb.ReadOptions_Transaction:
		tx, err = db.transaction(c.Transaction, now)
	case *pb.ReadOptions_NewTransaction:
		if tx, err = db.begin(c.NewTransaction, now); err == nil {
			v.begun = []byte(tx.id)
		}
	case *pb.ReadOptions_ReadTime:
		v.at, err = db.readTime(c.ReadTime, now)
	case *pb.ReadOptions_ReadConsistency_:
		if c.ReadConsistency != pb.ReadOptions_STRONG && c.ReadConsistency != pb.ReadOptions_EVENTUAL {
			err = model.Invalid("there is no read consistency %d", c.ReadConsistency)
		}
	}
	if err != nil {
		return view{}, err
	}
	if tx != nil {
		v.at = tx.snapshot
		if db.locks(tx) {
			v.at = db.lastCommit
		}
		if !tx.readOnly {
			v.tx = tx // a read-only transaction can't conflict
		}
	}
	return v, nil
}

// readTime returns the read time of a request in microseconds since 1970. It returns an error if
// the state of that time is not available.
func (db *database) readTime(t *timestamppb.Timestamp, now time.Time) (int64, error) {
	if err := t.CheckValid(); err != nil {
		return 0, model.Invalid("read_time: %v", err)
	}
	if t.Nanos%1000 != 0 {
		return 0, model.Invalid("timestamp cannot have more than microseconds precision")
	}
	micros := t.AsTime().UnixMicro()
	switch {
	case micros > max(now.UnixMicro(), db.lastCommit):
		return 0, model.Invalid("read_time %v is in the future", t.AsTime())
	case micros < 0:
		return 0, model.Invalid("read_time %v is before 1970", t.AsTime())
	case micros < now.Add(-db.opts.Retention).UnixMicro():
		return 0, status.Errorf(codes.FailedPrecondition, "read_time %v is too old: versions are kept for %v",
			t.AsTime(), db.opts.Retention)
	case micros < db.forgotten:
		return 0, status.Errorf(codes.FailedPrecondition, "read_time %v is too old: versions since %v are kept, as "+
			"older ones would take more than %d bytes of memory",
			t.AsTime(), time.UnixMicro(db.forgotten).UTC(), db.opts.VersionMemory)
	case db.opts.PointInTime && micros < now.Add(-time.Hour).UnixMicro() && micros%time.Minute.Microseconds() != 0:
		return 0, model.Invalid("read_time %v is more than an hour ago, and no whole minute", t.AsTime())
	}
	return micros, nil
}

func (db *database) lookup(keys []model.Key, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	view, err := db.view(req.ReadOptions, time.Now())
	if err != nil {
		return nil, err
	}
	defer db.scan(view.at)()
	resp := &pb.LookupResponse{Transaction: view.begun, ReadTime: entity.Time(view.at)}
	size := 0
	for i, key := range keys {
		v, ok := db.get(key, view.at)
		if size += len(v.Wire(false)) + query.ResultOverhead; i > 0 && size > maxResponse {
			for _, rest := range keys[i:] {
				resp.Deferred = append(resp.Deferred, rest.PB)
			}
			break
		}
		if view.tx != nil {
			view.tx.keys[key.ID()] = key
		}
		if !ok {
			resp.Missing = append(resp.Missing, &pb.EntityResult{Entity: &pb.Entity{Key: key.PB}, Version: view.at})
			continue
		}
		result := v.Result(false)
		if req.PropertyMask != nil {
			if err := keepMasked(result, v, req.PropertyMask.Paths); err != nil {
				return nil, err
			}
		}
		resp.Found = append(resp.Found, result)
	}
	return resp, nil
}

// keepMasked removes from a result the properties that are not in a property mask.
func keepMasked(r *pb.EntityResult, v store.Version, paths []string) error {
	properties, err := entity.Mask(nil, v.Properties(), paths)
	if err != nil {
		return err
	}
	r.ProtoReflect().SetUnknown(nil)
	r.Entity = &pb.Entity{Key: v.Key(), Properties: properties}
	return nil
}

// runQuery returns one batch of a query's results.
func (db *database) runQuery(
	ctx context.Context, q *query.Query, req *pb.RunQueryRequest,
) (*pb.RunQueryResponse, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	release, err := db.prepare(ctx, q)
	if err != nil {
		return nil, err
	}
	defer release()
	view, err := db.view(req.ReadOptions, time.Now())
	if err != nil {
		return nil, err
	}
	defer db.scan(view.at)()
	seen := view.remember(q)
	batch := &pb.QueryResultBatch{
		EntityResultType: q.ResultType(),
		MoreResults:      pb.QueryResultBatch_NO_MORE_RESULTS,
		ReadTime:         entity.Time(view.at),
		SnapshotVersion:  view.at,
	}
	if q.To != "" {
		batch.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_CURSOR
	}
	size := 0
	var last, skipped query.Row
	stopped := false
	db.scanRows(q, view.at, func(r query.Row) bool {
		if int(batch.SkippedResults) < q.Offset {
			batch.SkippedResults++
			last, skipped = r, r
			return true
		}
		switch n := len(batch.EntityResults); {
		case n == q.Limit:
			batch.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_LIMIT
			stopped = true
			return false
		case n == db.opts.Batch || n > 0 && size+q.Size(r) > maxResponse:
			batch.MoreResults = pb.QueryResultBatch_NOT_FINISHED
			stopped = true
			return false
		}
		last = r
		result := q.Result(r)
		if req.PropertyMask != nil && !q.KeysOnly {
			if err = keepMasked(result, r.Version, req.PropertyMask.Paths); err != nil {
				return false
			}
		}
		size += q.Size(r)
		batch.EntityResults = append(batch.EntityResults, result)
		return true
	})
	if err != nil {
		return nil, err
	}
	if batch.SkippedResults > 0 {
		batch.SkippedCursor = q.Cursor(skipped)
	}
	if batch.EndCursor = q.Start; last.SortKey != "" {
		batch.EndCursor = q.Cursor(last)
	}
	if stopped {
		seen.stop(last.SortKey)
	}
	return &pb.RunQueryResponse{Batch: batch, Transaction: view.begun}, nil
}

// remember records in the view's transaction, if it has one, that the transaction reads all results
// of a query. It returns this record. After the scan, the caller corrects the record to the results
// that were really read. The record comes first because other calls may commit during the scan.
func (v view) remember(q *query.Query) *scanned {
	seen := &scanned{query: q}
	if v.tx != nil {
		v.tx.queries = append(v.tx.queries, seen)
	}
	return seen
}

// scanRows visits the rows of a query, as [query.Query.Scan] does. The caller has locked the
// database; it is unlocked in pauses.
func (db *database) scanRows(q *query.Query, at int64, visit func(query.Row) bool) {
	if !model.Reserved(q.Kind) {
		q.Scan(db.stored(q), at, &db.mu, visit)
		return
	}
	// Entities of reserved kinds are made for this query, in pieces. So a query with a limit does
	// not make all of them.
	const atOnce = 1000
	from, to, byKey := q.ByKey()
	most := min(db.opts.Batch, atOnce) + 1
	switch {
	case !byKey:
		most = math.MaxInt
	case q.Limit >= 0 && q.Limit < most:
		most = q.Limit + 1
	}
	for more := true; more; {
		k, next := db.describe(q.Namespace, q.Kind, at, metadata.Span{From: from, To: to}, most)
		more, from = next != "", next
		q.Scan([]*store.Kind{k}, at, &db.mu, func(r query.Row) bool {
			goesOn := visit(r)
			more = more && goesOn
			return goesOn
		})
	}
}

// stored returns the kinds that a query reads. Kinds that never had an entity are left out.
func (db *database) stored(q *query.Query) []*store.Kind {
	if q.Kind != "" {
		if k := db.kind(q.Namespace, q.Kind); k != nil {
			return []*store.Kind{k}
		}
		return nil
	}
	if all, ok := db.namespaces.Get(q.Namespace); ok {
		return all.Values()
	}
	return nil
}
