package dsemu

import (
	"context"
	"sync"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/meter"
)

const maxLookupKeys = 1000

// Options say how a server behaves. All fields have to be set.
type Options struct {
	Scatter int    // an entity in this many has __scatter__
	Batch   int    // results of a query in one answer, at most
	Seed    uint64 // of the ids that are allocated
}

// A Server is a google.datastore.v1 service.
type Server struct {
	pb.UnimplementedDatastoreServer

	opts  Options
	meter *meter.Meter

	mu        sync.Mutex
	databases map[[2]string]*database
}

// NewServer returns a server without entities, which counts on m.
func NewServer(opts Options, m *meter.Meter) *Server {
	return &Server{opts: opts, meter: m, databases: make(map[[2]string]*database)}
}

func (s *Server) database(project, id string) (*database, error) {
	if project == "" {
		return nil, invalid("the request's project_id is empty")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	db := s.databases[[2]string{project, id}]
	if db == nil {
		db = newDatabase(project, id, s.opts)
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
	if n := len(req.Keys); n == 0 || n > maxLookupKeys {
		return nil, invalid("a lookup has 1 to %d keys, this one has %d", maxLookupKeys, n)
	}
	keys := make([]storedKey, len(req.Keys))
	for i, k := range req.Keys {
		if keys[i], err = db.storedKey(k); err != nil {
			return nil, err
		}
	}
	resp, err := db.lookup(keys, req.ReadOptions)
	if err != nil {
		return nil, err
	}
	s.meter.Lookup(resp)
	return resp, nil
}

// RunQuery returns one batch of a query's results.
func (s *Server) RunQuery(_ context.Context, req *pb.RunQueryRequest) (*pb.RunQueryResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetGqlQuery() != nil:
		return nil, unimplemented("GQL")
	case req.GetQuery() == nil:
		return nil, invalid("the request has no query")
	case req.ExplainOptions != nil:
		return nil, unimplemented("explain_options")
	case req.PropertyMask != nil:
		return nil, unimplemented("the property mask of a query")
	}
	q, err := db.parse(req.PartitionId, req.GetQuery())
	if err != nil {
		return nil, err
	}
	resp, err := db.runQuery(q, req.ReadOptions)
	if err != nil {
		return nil, err
	}
	s.meter.RunQuery(resp)
	return resp, nil
}

// BeginTransaction opens a transaction.
func (s *Server) BeginTransaction(_ context.Context, req *pb.BeginTransactionRequest) (*pb.BeginTransactionResponse, error) {
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
func (s *Server) Commit(_ context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	resp, err := db.commit(req)
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
	db.expire(time.Now())
	if db.transactions[string(req.Transaction)] == nil {
		return nil, errTransaction
	}
	delete(db.transactions, string(req.Transaction))
	db.trim()
	return new(pb.RollbackResponse), nil
}

// AllocateIds completes keys with ids that no entity has.
func (s *Server) AllocateIds(_ context.Context, req *pb.AllocateIdsRequest) (*pb.AllocateIdsResponse, error) {
	db, err := s.database(req.ProjectId, req.DatabaseId)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	resp := new(pb.AllocateIdsResponse)
	for _, k := range req.Keys {
		if err := checkPath(k.GetPath(), true); err != nil {
			return nil, err
		}
		if k.Path[len(k.Path)-1].IdType != nil {
			return nil, invalid("AllocateIds takes incomplete keys, this one is complete: %v", k.Path)
		}
		key, err := db.allocate(k)
		if err != nil {
			return nil, err
		}
		resp.Keys = append(resp.Keys, key.pb)
	}
	return resp, nil
}
