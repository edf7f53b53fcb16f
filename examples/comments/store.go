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

// plainKind is the kind that callers use for comments. The store keeps comments under other kinds,
// one for each shard.
const plainKind = "Comment"

// Properties of a comment that the store itself uses. All others are the caller's.
const (
	orderProperty   = "Order"   // the number of the order, which determines the shard
	createdProperty = "Created" // the time that is also in the comment's ID
	updatedProperty = "Updated" // the time of the last write
	writesProperty  = "~writes" // the tokens of the last writes; callers do not see it
)

// A Comment is a comment on an order, as this program's callers use it.
type Comment struct {
	Key     *datastore.Key `datastore:"__key__"`
	Order   int64
	Status  string // status of the order
	Author  string
	Text    string    `datastore:",noindex"`
	Created time.Time // set by the store if missing
	Updated time.Time // set by the store at every write

	Edits int64 `datastore:",noindex"`
	// tokens of the last edits, by which a retry finds out whether its edit took effect
	Edited []string `datastore:",noindex"`
}

// ID returns the comment's ID, from its key.
func (c *Comment) ID() ID {
	if c.Key == nil {
		return 0
	}
	return ID(c.Key.ID)
}

// plain returns the key of a comment that callers see. For the ID 0 it is an incomplete key.
func plain(id ID) *datastore.Key { return datastore.IDKey(plainKind, int64(id), nil) }

// A Store is a Datastore client whose callers see comments as entities of one kind, Comment. In
// fact it keeps them in logical shards, which are kinds in several databases. Each number of shards
// is a multiple of the number of databases, so an order stays in its database. Other kinds are in
// database 0.
//
// An interceptor routes the client's calls to the shards. So code that uses a *datastore.Client can
// use Store.Client. The methods of Store also return errors for keys that can't be written.
type Store struct {
	*datastore.Client

	router *router
}

// A router answers a client's calls about comments, by calls to the shards that have the comments.
type router struct {
	databases []*database
	// number of logical shards when the store was created; used for reads at a time before the
	// layout existed
	first int
	now   func() time.Time

	mu           sync.Mutex
	generators   map[[2]int]*Generator // generators of IDs, by database and shard
	transactions map[string]*transaction
	started      int
}

// OpenStore returns a store of comments in a number of logical shards. The first call decides on
// the number. Later calls must name the same databases in the same order, and the current number of
// shards or an earlier one, because comments may have been moved since.
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
	for _, write := range []bool{false, true} { // write only after all databases were found to agree
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

// check returns an error if the numbers of logical shards and databases do not fit together.
func check(shards, databases int) error {
	if databases == 0 || databases > MaxPhysical || shards < 1 || shards > MaxLogical || shards%databases != 0 {
		return fmt.Errorf("%d logical shards in %d databases: want a multiple of the databases, up to %d, and 1 to %d "+
			"databases",
			shards, databases, MaxLogical, MaxPhysical)
	}
	return nil
}

// database returns the database that has the comments of an order.
func (r *router) database(order int64) *database {
	return r.databases[order/ordersAShard%int64(len(r.databases))]
}

// generator returns this process's generator of IDs for a logical shard in a database. It makes one
// at the first call.
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

// route answers a call of the client, like the server of Datastore would.
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

// Put is the same as [datastore.Client.Put].
func (s *Store) Put(ctx context.Context, key *datastore.Key, src any) (*datastore.Key, error) {
	key, err := s.Client.Put(ctx, key, src)
	return key, first(err)
}

// PutMulti is the same as [datastore.Client.PutMulti].
func (s *Store) PutMulti(ctx context.Context, keys []*datastore.Key, src any) ([]*datastore.Key, error) {
	all, err := s.Client.PutMulti(ctx, keys, src)
	return all, byPosition(len(keys), err)
}

// PutWithOptions is the same as [datastore.Client.PutWithOptions].
func (s *Store) PutWithOptions(ctx context.Context, req *datastore.PutRequest,
	opts ...datastore.PutOption) (*datastore.Key, error) {
	key, err := s.Client.PutWithOptions(ctx, req, opts...)
	return key, first(err)
}

// PutMultiWithOptions is the same as [datastore.Client.PutMultiWithOptions].
func (s *Store) PutMultiWithOptions(ctx context.Context, reqs []*datastore.PutRequest,
	opts ...datastore.PutOption) ([]*datastore.Key, error) {
	all, err := s.Client.PutMultiWithOptions(ctx, reqs, opts...)
	return all, byPosition(len(reqs), err)
}

// Delete is the same as [datastore.Client.Delete].
func (s *Store) Delete(ctx context.Context, key *datastore.Key) error {
	return first(s.Client.Delete(ctx, key))
}

// DeleteMulti is the same as [datastore.Client.DeleteMulti].
func (s *Store) DeleteMulti(ctx context.Context, keys []*datastore.Key) error {
	return byKey(keys, s.Client.DeleteMulti(ctx, keys))
}

// Mutate is the same as [datastore.Client.Mutate].
func (s *Store) Mutate(ctx context.Context, mutations ...*datastore.Mutation) ([]*datastore.Key, error) {
	all, err := s.Client.Mutate(ctx, mutations...)
	return all, byPosition(len(mutations), err)
}

// first converts an error about several keys, of a call with one key, into the error about this
// key. It returns other errors unchanged.
func first(err error) error {
	var all *keyErrors
	if errors.As(err, &all) {
		for _, e := range all.byPosition {
			return e
		}
	}
	return err
}

// byKey converts an error to a datastore.MultiError, with the error of each key at its position, as
// the client does.
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

// byPosition converts an error to a datastore.MultiError, with the error of each of n mutations at
// its position, as the client does.
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
