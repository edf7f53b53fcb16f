package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// plainKind is the kind that callers know. No entity is stored under it.
const plainKind = "Comment"

// What the store knows of a comment. All else is the caller's.
const (
	orderProperty   = "Order"   // an integer: it decides about the shard
	createdProperty = "Created" // a time that makes the ID
	updatedProperty = "Updated" // the time of the last write
	writesProperty  = "~writes" // tokens of the last writes; no reader sees it
)

// A Comment is one of an order, as this program has it.
type Comment struct {
	Key     *datastore.Key `datastore:"__key__"`
	Order   int64
	Status  string // of the order, about which the comment is
	Author  string
	Text    string    `datastore:",noindex"`
	Created time.Time // if it is not given, the store says when
	Updated time.Time // by the store

	Edits  int64    `datastore:",noindex"`
	Edited []string `datastore:",noindex"` // tokens of the last edits, by which an edit finds that it was made
}

// ID returns the comment's ID.
func (c *Comment) ID() ID {
	if c.Key == nil {
		return 0
	}
	return ID(c.Key.ID)
}

// plain returns the key of a comment. Without an ID it is that of a new one.
func plain(id ID) *datastore.Key { return datastore.IDKey(plainKind, int64(id), nil) }

// A Store is a Datastore client to whom the kind Comment is one kind like any other. Behind it,
// comments are in logical shards, which are kinds of several databases. How many databases there
// are divides each number of shards that there ever is, so an order stays in its database. Other
// kinds are in database 0.
//
// The client's calls are routed on their way to the database. So what uses a *datastore.Client can
// use Store.Client. Store's own methods say which keys cannot be written.
type Store struct {
	*datastore.Client

	router *router
}

// A router sends what is asked of the plain kind to the shards.
type router struct {
	databases []*database
	first     int // logical shards, in the past before there was a layout
	now       func() time.Time

	mu           sync.Mutex
	generators   map[[2]int]*Generator // by database and shard
	transactions map[string]*transaction
	started      int
}

// OpenStore returns a store of comments in so many logical shards. The first one decides. Later
// ones have to name the same databases in the same order, and a number of shards that there is or
// was: comments may have been moved since.
func OpenStore(ctx context.Context, shards int, databases ...Open) (*Store, error) {
	r := &router{first: shards, now: time.Now, generators: make(map[[2]int]*Generator),
		transactions: make(map[string]*transaction)}
	if err := check(shards, len(databases)); err != nil {
		return nil, err
	}
	s := &Store{router: r}
	for i, open := range databases {
		route := r.route
		if i > 0 {
			route = nil
		}
		d, err := connect(ctx, i, open, route)
		if err != nil {
			_ = s.Close()
			return nil, err
		}
		r.databases = append(r.databases, d)
	}
	for _, write := range []bool{false, true} { // nothing is written before all agree
		for _, d := range r.databases {
			if err := agree(ctx, d, shards, len(databases), write); err != nil {
				_ = s.Close()
				return nil, err
			}
		}
	}
	s.Client = r.databases[0].client
	return s, nil
}

// Close closes the clients of all databases.
func (s *Store) Close() error {
	var all []error
	for _, d := range s.router.databases {
		all = append(all, d.client.Close())
	}
	return errors.Join(all...)
}

// check returns an error if there can't be so many logical shards in so many databases.
func check(shards, databases int) error {
	if databases == 0 || databases > MaxPhysical || shards < 1 || shards > MaxLogical || shards%databases != 0 {
		return fmt.Errorf("%d logical shards in %d databases: want a multiple of the databases, up to %d, and 1 to %d "+
			"databases",
			shards, databases, MaxLogical, MaxPhysical)
	}
	return nil
}

// database returns which one has an order's comments.
func (r *router) database(order int64) *database {
	return r.databases[order/ordersAShard%int64(len(r.databases))]
}

// generator returns what draws the IDs of a shard in this process.
func (r *router) generator(database, shard int) (*Generator, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := [2]int{database, shard}
	if r.generators[place] == nil {
		g, err := NewGenerator(database, shard)
		if err != nil {
			return nil, err
		}
		g.now = r.now
		r.generators[place] = g
	}
	return r.generators[place], nil
}

// route answers a call of the client.
func (r *router) route(ctx context.Context, req, reply any) error {
	var answer proto.Message
	var err error
	switch req := req.(type) {
	case *pb.LookupRequest:
		answer, err = r.lookup(ctx, req)
	case *pb.RunQueryRequest:
		answer, err = r.runQuery(ctx, req)
	case *pb.RunAggregationQueryRequest:
		answer, err = r.aggregate(ctx, req)
	case *pb.BeginTransactionRequest:
		answer = &pb.BeginTransactionResponse{Transaction: r.start(req.TransactionOptions)}
	case *pb.CommitRequest:
		answer, err = r.commit(ctx, req)
	case *pb.RollbackRequest:
		answer, err = r.rollback(ctx, req)
	case *pb.AllocateIdsRequest:
		if slices.ContainsFunc(req.Keys, own) {
			return errNoOrder
		}
		answer, err = r.databases[0].api().AllocateIds(ctx, req)
	case *pb.ReserveIdsRequest:
		if slices.ContainsFunc(req.Keys, own) {
			return errNoOrder
		}
		answer, err = r.databases[0].api().ReserveIds(ctx, req)
	default:
		err = status.Errorf(codes.Unimplemented, "the store has no answer to %T", req)
	}
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

var errNoOrder = status.Error(codes.InvalidArgument, "an ID names the shard of a comment's order, so there is none "+
	"before "+
	"the comment: put it under datastore.IncompleteKey(\"Comment\", nil)")

// Put is the client's.
func (s *Store) Put(ctx context.Context, key *datastore.Key, src any) (*datastore.Key, error) {
	key, err := s.Client.Put(ctx, key, src)
	return key, first(err)
}

// PutMulti is the client's.
func (s *Store) PutMulti(ctx context.Context, keys []*datastore.Key, src any) ([]*datastore.Key, error) {
	all, err := s.Client.PutMulti(ctx, keys, src)
	return all, byPosition(len(keys), err)
}

// PutWithOptions is the client's.
func (s *Store) PutWithOptions(ctx context.Context, req *datastore.PutRequest,
	opts ...datastore.PutOption) (*datastore.Key, error) {
	key, err := s.Client.PutWithOptions(ctx, req, opts...)
	return key, first(err)
}

// PutMultiWithOptions is the client's.
func (s *Store) PutMultiWithOptions(ctx context.Context, reqs []*datastore.PutRequest,
	opts ...datastore.PutOption) ([]*datastore.Key, error) {
	all, err := s.Client.PutMultiWithOptions(ctx, reqs, opts...)
	return all, byPosition(len(reqs), err)
}

// Delete is the client's.
func (s *Store) Delete(ctx context.Context, key *datastore.Key) error {
	return first(s.Client.Delete(ctx, key))
}

// DeleteMulti is the client's.
func (s *Store) DeleteMulti(ctx context.Context, keys []*datastore.Key) error {
	return byKey(keys, s.Client.DeleteMulti(ctx, keys))
}

// Mutate is the client's.
func (s *Store) Mutate(ctx context.Context, mutations ...*datastore.Mutation) ([]*datastore.Key, error) {
	all, err := s.Client.Mutate(ctx, mutations...)
	return all, byPosition(len(mutations), err)
}

// first returns the error of the only key.
func first(err error) error {
	var all *keyErrors
	if errors.As(err, &all) {
		for _, e := range all.byPosition {
			return e
		}
	}
	return err
}

// byKey returns the errors of keys at their positions, as the client does.
func byKey(keys []*datastore.Key, err error) error {
	var all *keyErrors
	if !errors.As(err, &all) {
		return err
	}
	multi := make(datastore.MultiError, len(keys))
	for i, key := range keys {
		if e := all.byKey[nameOf(key)]; e != nil {
			multi[i] = e
		}
	}
	return multi
}

// byPosition returns the errors of a commit's parts at their positions, as the client does.
func byPosition(n int, err error) error {
	var all *keyErrors
	if !errors.As(err, &all) {
		return err
	}
	multi := make(datastore.MultiError, n)
	for i, e := range all.byPosition {
		multi[i] = e
	}
	return multi
}
