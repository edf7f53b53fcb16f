package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A session is a transaction or a snapshot of one database, with the layout that was read in it.
type session struct {
	db     *database
	id     []byte // the ID of the database's transaction
	at     *timestamppb.Timestamp
	layout Layout
}

// begin starts a transaction of a database, and reads the layout in it.
func (r *router) begin(ctx context.Context, db *database, options *pb.TransactionOptions) (*session, error) {
	resp, err := read(ctx, func() (*pb.BeginTransactionResponse, error) {
		return db.api().BeginTransaction(ctx, &pb.BeginTransactionRequest{ProjectId: db.project, DatabaseId: db.name,
			TransactionOptions: options})
	})
	if err != nil {
		return nil, err
	}
	s := &session{db: db, id: resp.Transaction}
	return s, r.readLayout(ctx, s)
}

// snapshot returns a session that reads a database as of a time. By default this is now. The
// session takes no locks, and need not be ended.
func (r *router) snapshot(ctx context.Context, db *database, at *timestamppb.Timestamp) (*session, error) {
	s := &session{db: db, at: at}
	return s, r.readLayout(ctx, s)
}

func (r *router) readLayout(ctx context.Context, s *session) error {
	resp, err := read(ctx, func() (*pb.LookupResponse, error) {
		return s.db.api().Lookup(ctx, &pb.LookupRequest{ProjectId: s.db.project, DatabaseId: s.db.name,
			Keys: []*pb.Key{{Path: []*pb.Key_PathElement{{Kind: layoutKey.Kind,
				IdType: &pb.Key_PathElement_Name{Name: layoutKey.Name}}}}}, ReadOptions: s.options()})
	})
	if err != nil {
		return err
	}
	if s.id == nil && s.at == nil {
		s.at = resp.ReadTime
	}
	if len(resp.Found) == 0 && s.id != nil {
		return status.Errorf(codes.FailedPrecondition,
			"database %d has lost its layout, %v, without which nobody knows where "+
				"its comments are: open the store again if it is empty", s.db.number, layoutKey)
	}
	s.layout = Layout{Shards: r.first} // the layout did not exist yet at that time
	for _, found := range resp.Found {
		p := found.Entity.GetProperties()
		s.layout = Layout{Shards: int(p["Shards"].GetIntegerValue()), Next: int(p["Next"].GetIntegerValue())}
		for _, n := range p["Before"].GetArrayValue().GetValues() {
			s.layout.Before = append(s.layout.Before, int(n.GetIntegerValue()))
		}
	}
	return nil
}

// options returns the read options for reads in the session.
func (s *session) options() *pb.ReadOptions {
	switch {
	case s.id != nil:
		return &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_Transaction{Transaction: s.id}}
	case s.at != nil:
		return &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_ReadTime{ReadTime: s.at}}
	}
	return nil
}

// rollback ends a transaction that has changed nothing. It does not wait for the answer: if the
// call gets lost, the database ends the transaction later.
func (s *session) rollback(ctx context.Context) {
	if s.id == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	go func() {
		defer cancel()
		_, _ = s.db.api().Rollback(ctx, &pb.RollbackRequest{ProjectId: s.db.project, DatabaseId: s.db.name,
			Transaction: s.id})
	}()
}

// A transaction is the transaction of a caller. The caller's first read or write determines the
// database, and starts a transaction there. All later ones must be in the same database.
type transaction struct {
	options *pb.TransactionOptions
	started time.Time

	mu      sync.Mutex
	session *session
}

// transactionTime is the maximum lifetime of a transaction in Datastore.
const transactionTime = 5 * time.Minute

// errTwoDatabases returns the error for a transaction that uses two databases.
func errTwoDatabases(a, b *database) error {
	return status.Errorf(codes.FailedPrecondition, "a transaction is within one database, and this one has used "+
		"database %d "+
		"before database %d: comments of an order are in one, other kinds are in database 0, and a query without an "+
		"order "+
		"or IDs is of all", a.number, b.number)
}

// on returns the session of the transaction in a database. It returns an error if the transaction
// already uses another database.
func (t *transaction) on(ctx context.Context, r *router, db *database) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.session == nil:
		s, err := r.begin(ctx, db, t.options)
		if err != nil {
			return nil, err
		}
		t.session = s
	case t.session.db != db:
		return nil, errTwoDatabases(t.session.db, db)
	}
	return t.session, nil
}

// start starts a transaction for the caller, and returns its ID. It also forgets old transactions
// that the caller never ended.
func (r *router) start(options *pb.TransactionOptions) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, t := range r.transactions {
		if time.Since(t.started) > transactionTime {
			delete(r.transactions, id)
		}
	}
	r.started++
	id := fmt.Sprintf("comments-%d", r.started)
	// Remove the previous transaction that the caller names: the database does not know its ID.
	if options.GetReadWrite() != nil {
		options = &pb.TransactionOptions{}
	}
	r.transactions[id] = &transaction{options: options, started: time.Now()}
	return []byte(id)
}

// transaction returns the caller's transaction with the given ID.
func (r *router) transaction(id []byte) (*transaction, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.transactions[string(id)]
	if t == nil {
		return nil, status.Error(codes.InvalidArgument, "the transaction was ended, or has taken more than 5 minutes: "+
			"start it again")
	}
	return t, nil
}

// end forgets a transaction of the caller.
func (r *router) end(id []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.transactions, string(id))
}

func (r *router) rollback(ctx context.Context, req *pb.RollbackRequest) (*pb.RollbackResponse, error) {
	t, err := r.transaction(req.Transaction)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	s := t.session
	t.mu.Unlock()
	if s != nil {
		_, err = read(ctx, func() (*pb.RollbackResponse, error) {
			return s.db.api().Rollback(ctx, &pb.RollbackRequest{ProjectId: s.db.project, DatabaseId: s.db.name,
				Transaction: s.id})
		})
	}
	r.end(req.Transaction)
	if status.Code(err) == codes.InvalidArgument { // an earlier attempt has ended the transaction
		err = nil
	}
	return &pb.RollbackResponse{}, err
}

// A view is the state of the databases that a read sees: in the caller's transaction, or in a
// snapshot of each database.
type view struct {
	router *router
	tx     *transaction // nil if the read is not in a transaction
	begun  []byte       // the ID of the transaction that this read starts for the caller; nil: none
	at     *timestamppb.Timestamp
	locks  bool // whether to use read-only transactions as snapshots

	mu        sync.Mutex
	snapshots map[*database]*session
}

// view returns the view for a call with the given read options.
func (r *router) view(o *pb.ReadOptions) (v *view, err error) {
	v = &view{router: r, snapshots: make(map[*database]*session)}
	switch c := o.GetConsistencyType().(type) {
	case *pb.ReadOptions_Transaction:
		v.tx, err = r.transaction(c.Transaction)
	case *pb.ReadOptions_NewTransaction:
		v.begun = r.start(c.NewTransaction)
		v.tx, err = r.transaction(v.begun)
	case *pb.ReadOptions_ReadTime:
		v.at = c.ReadTime
	}
	return v, err
}

// reading calls do with the view that the read options o describe. If a database no longer has the
// snapshot, reading calls do again with new snapshots.
func reading[T any](ctx context.Context, r *router, o *pb.ReadOptions, do func(v *view) (T, error)) (answer T,
	err error) {
	locks := false
	for attempt := range tries {
		v, err := r.view(o)
		if err != nil {
			return answer, err
		}
		v.locks = locks
		answer, err = do(v)
		v.close(ctx)
		switch {
		case err == nil || v.tx != nil:
			return answer, err
		case v.at == nil && !locks && status.Code(err) == codes.FailedPrecondition &&
			strings.Contains(err.Error(), "read_time"):
			locks = true
			continue
		case status.Code(err) != codes.Aborted && !expired(err):
			return answer, err
		}
		if attempt == tries-1 {
			return answer, err
		}
		if err := pause(ctx, attempt); err != nil {
			return answer, err
		}
	}
	return answer, err
}

// on returns the view's session in a database. If there is none, it starts one: a snapshot, or in a
// caller's transaction a part of this transaction.
func (v *view) on(ctx context.Context, db *database) (*session, error) {
	if v.tx != nil {
		return v.tx.on(ctx, v.router, db)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.snapshots[db]; s != nil {
		return s, nil
	}
	var s *session
	var err error
	if !v.locks {
		s, err = v.router.snapshot(ctx, db, v.at)
	} else {
		s, err = v.router.begin(ctx, db, &pb.TransactionOptions{
			Mode: &pb.TransactionOptions_ReadOnly_{ReadOnly: &pb.TransactionOptions_ReadOnly{}}})
	}
	if err == nil {
		v.snapshots[db] = s
	}
	return s, err
}

// close ends the transactions that the view uses as snapshots.
func (v *view) close(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.snapshots {
		s.rollback(ctx)
	}
}

var errReadOnly = errors.New("nothing is written in a read-only transaction")
