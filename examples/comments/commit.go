package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recentWrites is the number of tokens that a comment stores: one for each of its last writes. If
// the answer to a write is lost, the retry finds the write's token, unless others have made more
// writes since.
const recentWrites = 32

// A write is one mutation in a commit of the caller.
type write struct {
	position int
	mutation *pb.Mutation
	own      bool
	entity   *pb.Entity // the new content of the comment; nil: the write deletes it
	id       ID         // the comment's ID; 0: it still has to be drawn
	drawn    bool
	order    int64
}

// parse checks the mutations of a commit, as far as possible without reads, and returns the writes
// for each database. It leaves out a deletion whose key no comment can have.
func (r *router) parse(mutations []*pb.Mutation) (map[*database][]*write, error) {
	all := make(map[*database][]*write)
	var bad keyErrors
	for i, m := range mutations {
		w, d, err := r.parseOne(i, m)
		if err == nil && d == nil {
			continue
		}
		if err == nil {
			all[d] = append(all[d], w)
			continue
		}
		keyErr := new(KeyError)
		if !errors.As(err, &keyErr) {
			return nil, err
		}
		bad.add(i, keyErr)
	}
	return all, bad.err()
}

func (r *router) parseOne(position int, m *pb.Mutation) (*write, *database, error) {
	w := &write{position: position, mutation: m}
	key := m.GetDelete()
	for _, entity := range []*pb.Entity{m.GetInsert(), m.GetUpdate(), m.GetUpsert()} {
		if entity != nil {
			w.entity, key = entity, entity.Key
		}
	}
	w.own = own(key)
	if path := key.GetPath(); len(path) > 0 && isShard(path[0].Kind) {
		return nil, nil,
			&KeyError{Key: clientKey(key), Reason: "it is in a shard: comments are written under the kind " +
				"" + plainKind}
	}
	if !w.own {
		return w, r.databases[0], nil
	}
	id, keyErr := r.shaped(key)
	if keyErr != nil && w.entity == nil {
		return w, nil, nil
	}
	if keyErr != nil {
		return nil, nil, keyErr
	}
	w.id, w.drawn = id, id == 0
	refuse := func(format string, args ...any) error {
		return &KeyError{Key: clientKey(key), Reason: fmt.Sprintf(format, args...)}
	}
	switch why := w.refused(); {
	case why != "":
		return nil, nil, refuse("%s", why)
	case w.entity == nil:
		return w, r.databases[id.Physical()], nil
	}
	if m.PropertyMask != nil && !slices.Contains(m.PropertyMask.Paths, orderProperty) {
		return w, r.databases[id.Physical()], nil // the stored comment says to which order it belongs
	}
	var err error
	if w.order, err = orderOf(w.entity); err != nil {
		return nil, nil, refuse("%v", err)
	}
	d := r.database(w.order)
	if !w.drawn && id.Physical() != d.number {
		return nil, nil,
			refuse("order %d is in database %d, and the ID in database %d: delete the comment, and put it "+
				"under a new ID",
				w.order, d.number, id.Physical())
	}
	return w, d, nil
}

// refused returns the reason why the store does not support a write, or "" if it does.
func (w *write) refused() string {
	switch {
	case w.entity == nil && w.drawn:
		return "a comment without an ID can't be deleted"
	case w.entity == nil:
		return ""
	case w.entity.Properties[writesProperty] != nil:
		return writesProperty + " is a property of the store's own: take another name"
	case w.mutation.ConflictDetectionStrategy != nil:
		return "the store does not compare versions: use a transaction"
	}
	for _, t := range w.mutation.PropertyTransforms {
		if slices.Contains([]string{orderProperty, createdProperty, updatedProperty, writesProperty}, t.Property) {
			return t.Property + " can't be transformed: the store needs it to find the shard"
		}
	}
	return ""
}

// orderOf returns the number of the order to which a comment belongs. It returns an error if the
// comment has none, or if it is not an integer of at least 0.
func orderOf(entity *pb.Entity) (int64, error) {
	v := entity.GetProperties()[orderProperty]
	n, ok := v.GetValueType().(*pb.Value_IntegerValue)
	switch {
	case v == nil:
		return 0, fmt.Errorf("it has no %s, which decides about its shard", orderProperty)
	case !ok:
		return 0, fmt.Errorf("its %s is no integer", orderProperty)
	case n.IntegerValue < 0:
		return 0, fmt.Errorf("its %s is %d, and has to be 0 or more", orderProperty, n.IntegerValue)
	}
	return n.IntegerValue, nil
}

// commit answers a commit: in the caller's transaction, or otherwise in one transaction for each
// database.
func (r *router) commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	all, err := r.parse(req.Mutations)
	if err != nil {
		return nil, err
	}
	if req.Mode != pb.CommitRequest_NON_TRANSACTIONAL {
		return r.commitTransaction(ctx, req, all)
	}
	if !slices.ContainsFunc(req.Mutations, ofComment) {
		return r.databases[0].api().Commit(ctx, req)
	}
	if err := once(all); err != nil {
		return nil, err
	}
	if len(all) > 1 {
		if err := r.rehearse(ctx, all); err != nil {
			return nil, err
		}
	}
	resp := &pb.CommitResponse{MutationResults: noResults(len(req.Mutations))}
	group, ctx := errgroup.WithContext(ctx)
	for d, writes := range all {
		if d.number == 0 {
			var others []*write
			writes, others = separate(writes)
			group.Go(func() error { return r.writeOthers(ctx, req, others, resp.MutationResults) })
		}
		group.Go(func() error {
			results, err := r.write(ctx, d, writes)
			for i, w := range writes {
				if err == nil {
					resp.MutationResults[w.position] = results[i]
				}
			}
			return err
		})
	}
	return resp, group.Wait()
}

// ofComment reports whether a mutation is about a comment, and not an entity of another kind.
func ofComment(m *pb.Mutation) bool {
	for _, entity := range []*pb.Entity{m.GetInsert(), m.GetUpdate(), m.GetUpsert()} {
		if entity != nil {
			return own(entity.Key)
		}
	}
	return own(m.GetDelete())
}

// noResults returns the results for n mutations that change nothing.
func noResults(n int) []*pb.MutationResult {
	results := make([]*pb.MutationResult, n)
	for i := range results {
		results[i] = &pb.MutationResult{}
	}
	return results
}

// once returns an error if two mutations are about the same entity. Datastore accepts such
// mutations only in a transaction.
func once(all map[*database][]*write) error {
	for _, writes := range all {
		seen := make(map[ID]bool)
		for _, w := range writes {
			if w.own && !w.drawn && seen[w.id] {
				return status.Error(codes.InvalidArgument,
					"A non-transactional commit may not contain multiple mutations affecting the same entity.")
			}
			seen[w.id] = true
		}
	}
	return nil
}

// rehearse plans the writes in all databases before anything is written, and returns the errors
// that they would have.
func (r *router) rehearse(ctx context.Context, all map[*database][]*write) error {
	_, err := reading(ctx, r, nil, func(v *view) (*plan, error) {
		var bad keyErrors
		for d, writes := range all {
			s, err := v.on(ctx, d)
			if err != nil {
				return nil, err
			}
			_, err = r.plan(ctx, s, writes, "")
			var some *keyErrors
			if errors.As(err, &some) {
				for position, err := range some.byPosition {
					bad.add(position, err)
				}
			} else if err != nil {
				return nil, err
			}
		}
		return nil, bad.err()
	})
	return err
}

// separate returns the writes of comments and the writes of other kinds.
func separate(writes []*write) (comments, others []*write) {
	for _, w := range writes {
		if w.own {
			comments = append(comments, w)
		} else {
			others = append(others, w)
		}
	}
	return comments, others
}

// writeOthers passes writes of other kinds to the database unchanged. It stores the result of each
// write in results, at the position that its mutation has in the request.
func (r *router) writeOthers(ctx context.Context, req *pb.CommitRequest, writes []*write,
	results []*pb.MutationResult) error {
	if len(writes) == 0 {
		return nil
	}
	alone := &pb.CommitRequest{ProjectId: req.ProjectId, DatabaseId: req.DatabaseId, Mode: req.Mode}
	for _, w := range writes {
		alone.Mutations = append(alone.Mutations, w.mutation)
	}
	resp, err := r.databases[0].api().Commit(ctx, alone)
	if err != nil {
		return err
	}
	for i, w := range writes {
		results[w.position] = resp.MutationResults[i]
	}
	return nil
}

// commitTransaction commits the caller's transaction, with its writes. The map all has the writes
// for each database.
func (r *router) commitTransaction(ctx context.Context, req *pb.CommitRequest,
	all map[*database][]*write) (*pb.CommitResponse, error) {
	id := req.GetTransaction()
	if req.GetSingleUseTransaction() != nil {
		id = r.start(req.GetSingleUseTransaction())
		defer r.end(id)
	}
	t, err := r.transaction(id)
	if err != nil {
		return nil, err
	}
	if t.options.GetReadOnly() != nil && len(req.Mutations) > 0 {
		return nil, status.Error(codes.InvalidArgument, errReadOnly.Error())
	}
	var s *session
	for d := range all {
		if s, err = t.on(ctx, r, d); err != nil {
			return nil, err
		}
	}
	resp := &pb.CommitResponse{MutationResults: noResults(len(req.Mutations))}
	if s == nil {
		t.mu.Lock()
		s = t.session
		t.mu.Unlock()
	}
	if s == nil || t.options.GetReadOnly() != nil { // the transaction has not read or written yet, or is read-only
		if s != nil {
			s.rollback(ctx)
		}
		r.end(id)
		return resp, nil
	}
	p, err := r.plan(ctx, s, all[s.db], "")
	if err != nil {
		return nil, err
	}
	committed, err := p.commit(ctx)
	if err != nil {
		return nil, err
	}
	r.end(id)
	for i, w := range all[s.db] {
		resp.MutationResults[w.position] = committed.MutationResults[i]
	}
	resp.IndexUpdates, resp.CommitTime = committed.IndexUpdates, committed.CommitTime
	return resp, nil
}

// write carries out writes in one database, in a transaction. If the outcome of an attempt is
// unknown, it tries again. A later attempt finds out whether an earlier one has written, so nothing
// is written twice.
func (r *router) write(ctx context.Context, d *database, writes []*write) (results []*pb.MutationResult, err error) {
	if len(writes) == 0 {
		return nil, nil
	}
	token := strconv.FormatUint(rand.Uint64(), 36)
	for attempt := range tries {
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return nil, err
			}
		}
		var s *session
		if s, err = r.begin(ctx, d, nil); err != nil {
			if lost(err) {
				continue
			}
			return nil, err
		}
		var p *plan
		p, err = r.plan(ctx, s, writes, token)
		if err == nil {
			var resp *pb.CommitResponse
			if resp, err = p.commit(ctx); err == nil {
				return resp.MutationResults, nil
			}
		}
		s.rollback(ctx)
		if status.Code(err) != codes.Aborted && !lost(err) && !expired(err) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("comments could not be written, %d times: %w", tries, err)
}

// expired reports whether an error says that a transaction has ended before its commit, so that the
// commit has changed nothing.
func expired(err error) bool {
	return status.Code(err) == codes.InvalidArgument && !errors.Is(err, datastore.ErrInvalidKey) &&
		strings.Contains(err.Error(), "transaction")
}
