package dsemu

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/meter"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
)

const maxLookupKeys = 1000

// Options are the settings of a server. All fields must be set.
type Options struct {
	Scatter     int           // n; one in n entities has the property __scatter__
	Batch       int           // the largest number of a query's results in one answer
	Seed        uint64        // seed of the random IDs of entities
	Retention   time.Duration // how long ago a read time may be
	PointInTime bool          // whether whole minutes older than an hour can be read (point-in-time recovery)
	Pessimistic bool          // whether transactions lock the entities that they read, as with pessimistic concurrency
	Indexes     *indexes.Set  // the composite indexes; a query that needs another one is refused; nil: none is refused

	// the largest size in bytes of a database's old versions, which only reads of the past need
	VersionMemory int64
	IndexMemory   int64 // the largest size in bytes of a database's indexes
}

// A Server serves google.datastore.v1.
type Server struct {
	pb.UnimplementedDatastoreServer

	opts  Options
	meter *meter.Meter

	lastID atomic.Uint64 // the ID of the last transaction

	mu        sync.Mutex
	databases map[[2]string]*database
}

// NewServer returns a server without entities, which counts its operations on m.
func NewServer(opts Options, m *meter.Meter) *Server {
	return &Server{opts: opts, meter: m, databases: make(map[[2]string]*database)}
}

func (s *Server) database(project, id string) (*database, error) {
	if err := (model.Database{Project: project, ID: id}).Check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	db := s.databases[[2]string{project, id}]
	if db == nil {
		db = newDatabase(project, id, s.opts, &s.lastID)
		s.databases[[2]string{project, id}] = db
	}
	return db, nil
}

// Lookup returns entities by their keys.
func (s *Server) Lookup(_ context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	if n := len(req.Keys); n > maxLookupKeys {
		return nil, model.Invalid("a lookup has at most %d keys, this one has %d", maxLookupKeys, n)
	}
	keys := make([]model.Key, 0, len(req.Keys))
	seen := make(map[string]bool, len(req.Keys))
	for _, k := range req.Keys {
		key, err := db.ReadKey(k)
		if err != nil {
			return nil, err
		}
		if id := key.ID(); !seen[id] {
			seen[id] = true
			keys = append(keys, key)
		}
	}
	if err := entity.CheckMask(req.PropertyMask); err != nil {
		return nil, err
	}
	resp, err := db.lookup(keys, req)
	if err != nil {
		return nil, err
	}
	s.meter.Lookup(resp)
	return resp, nil
}

// RunQuery returns one batch of a query's results.
func (s *Server) RunQuery(ctx context.Context, req *pb.RunQueryRequest) (*pb.RunQueryResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	asked := req.GetQuery()
	if req.GetGqlQuery() != nil {
		if asked, err = db.parseGQL(req.GetGqlQuery(), req.PartitionId); err != nil {
			return nil, err
		}
	}
	if asked == nil {
		return nil, model.Invalid("the request has no query")
	}
	q, err := query.Parse(db.Database, query.Options{Scatter: db.opts.Scatter, Indexes: db.opts.Indexes},
		req.PartitionId, asked)
	if err != nil {
		return nil, err
	}
	if req.PropertyMask != nil && len(q.Projected) > 0 {
		return nil, model.Invalid("a query with a projection can't have a property mask")
	}
	if err := entity.CheckMask(req.PropertyMask); err != nil {
		return nil, err
	}
	resp := new(pb.RunQueryResponse)
	if plans(req.ExplainOptions) {
		resp.ExplainMetrics = &pb.ExplainMetrics{PlanSummary: q.Summary()}
	} else {
		if resp, err = db.runQuery(ctx, q, req); err != nil {
			return nil, err
		}
		reads, small := s.meter.RunQuery(resp, q.Distinct > 0)
		if req.ExplainOptions != nil {
			cost := cost{results: int64(len(resp.Batch.EntityResults)), reads: reads, small: small, scanned: q.Scanned}
			if !q.KeysOnly && len(q.Projected) == 0 {
				cost.documents = cost.results + int64(resp.Batch.SkippedResults)
			}
			resp.ExplainMetrics = cost.metrics(q.Summary(), time.Since(begun))
		}
	}
	if req.GetGqlQuery() != nil {
		resp.Query = asked
	}
	return resp, nil
}

// RunAggregationQuery counts the results of a query, or adds up their values.
func (s *Server) RunAggregationQuery(
	ctx context.Context, req *pb.RunAggregationQueryRequest,
) (*pb.RunAggregationQueryResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	asked := req.GetAggregationQuery()
	if req.GetGqlQuery() != nil {
		if asked, err = db.parseAggregationGQL(req.GetGqlQuery(), req.PartitionId); err != nil {
			return nil, err
		}
	}
	if asked.GetNestedQuery() == nil {
		return nil, model.Invalid("the request has no query to aggregate")
	}
	tallies, err := query.NewTallies(asked.Aggregations)
	if err != nil {
		return nil, err
	}
	q, err := query.Parse(db.Database, query.Options{Scatter: db.opts.Scatter, Indexes: db.opts.Indexes},
		req.PartitionId, asked.GetNestedQuery(), query.Aggregated(tallies)...)
	if err != nil {
		return nil, err
	}
	resp := new(pb.RunAggregationQueryResponse)
	if plans(req.ExplainOptions) {
		resp.ExplainMetrics = &pb.ExplainMetrics{PlanSummary: q.Summary()}
	} else {
		var entries int64
		if resp, entries, err = db.aggregate(ctx, q, tallies, req.ReadOptions); err != nil {
			return nil, err
		}
		reads := s.meter.Aggregation(entries)
		if req.ExplainOptions != nil {
			resp.ExplainMetrics = cost{results: 1, reads: reads, scanned: q.Scanned,
				aggregated: entries}.metrics(q.Summary(), time.Since(begun))
		}
	}
	if req.GetGqlQuery() != nil {
		resp.Query = asked
	}
	return resp, nil
}

// BeginTransaction opens a transaction.
func (s *Server) BeginTransaction(
	_ context.Context, req *pb.BeginTransactionRequest,
) (*pb.BeginTransactionResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	tx, err := db.begin(req.TransactionOptions, time.Now())
	if err != nil {
		return nil, err
	}
	return &pb.BeginTransactionResponse{Transaction: []byte(tx.id)}, nil
}

// Commit applies mutations, all or none of them.
func (s *Server) Commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	resp, err := db.commit(ctx, req)
	if err != nil {
		return nil, err
	}
	s.meter.Commit(req)
	return resp, nil
}

// Rollback ends a transaction.
func (s *Server) Rollback(_ context.Context, req *pb.RollbackRequest) (*pb.RollbackResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	now := time.Now()
	db.expire(now)
	tx := db.transactions[string(req.Transaction)]
	if tx == nil {
		return nil, errTransaction
	}
	db.end(tx)
	if tx.expired(now) {
		return nil, errTransaction
	}
	db.trim(now)
	return new(pb.RollbackResponse), nil
}

// AllocateIds completes keys with IDs that no entity has.
func (s *Server) AllocateIds(_ context.Context, req *pb.AllocateIdsRequest) (*pb.AllocateIdsResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	resp := new(pb.AllocateIdsResponse)
	for _, k := range req.Keys {
		if err := model.CheckPath(k.GetPath(), true); err != nil {
			return nil, err
		}
		if k.Path[len(k.Path)-1].IdType != nil {
			return nil, model.Invalid("AllocateIds takes incomplete keys, one of these is complete")
		}
		key, err := db.allocate(k)
		if err != nil {
			return nil, err
		}
		resp.Keys = append(resp.Keys, key.PB)
	}
	s.meter.AllocateIds(len(resp.Keys))
	return resp, nil
}

// ReserveIds prevents AllocateIds and inserts from choosing the IDs of some keys. A key with a name
// needs no reservation.
func (s *Server) ReserveIds(_ context.Context, req *pb.ReserveIdsRequest) (*pb.ReserveIdsResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, k := range req.Keys {
		key, err := db.StoredKey(k)
		if err != nil {
			return nil, err
		}
		db.reservedIDs[key.ID()] = true
	}
	return new(pb.ReserveIdsResponse), nil
}

// Reset deletes all databases with their transactions.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, db := range s.databases {
		db.mu.Lock()
		db.closed = true // calls that wait for this database, or are about to lock it, then fail
		for _, tx := range db.transactions {
			db.end(tx)
		}
		db.mu.Unlock()
	}
	clear(s.databases)
}
