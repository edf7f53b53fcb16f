package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A plan has the mutations of a transaction, and the results that the caller gets for them.
type plan struct {
	session   *session
	mutations []*pb.Mutation // one mutation for each write, followed by deletions in the shards that comments leave
	leave     []*pb.Mutation
	// with the keys that callers see; the IDs of new comments are missing unless written is set
	results []*pb.MutationResult
	written bool // whether an earlier attempt has committed the writes
}

// commit commits the transaction of a plan, unless an earlier attempt has committed the writes.
func (p *plan) commit(ctx context.Context) (*pb.CommitResponse, error) {
	if p.written {
		p.session.rollback(ctx)
		return &pb.CommitResponse{MutationResults: p.results}, nil
	}
	resp, err := p.session.db.api().Commit(ctx, &pb.CommitRequest{ProjectId: p.session.db.project,
		DatabaseId:          p.session.db.name,
		Mode:                pb.CommitRequest_TRANSACTIONAL,
		TransactionSelector: &pb.CommitRequest_Transaction{Transaction: p.session.id},
		Mutations:           slices.Concat(p.mutations, p.leave)})
	// another process has inserted a comment with this ID since the plan was made
	if status.Code(err) == codes.AlreadyExists {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	if err != nil {
		return nil, err
	}
	if len(resp.MutationResults) < len(p.mutations) {
		return nil, status.Errorf(codes.Internal, "the database has %d results of %d mutations",
			len(resp.MutationResults),
			len(p.mutations))
	}
	resp.MutationResults = resp.MutationResults[:len(p.mutations)]
	for i, result := range p.results {
		if result != nil {
			resp.MutationResults[i].Key = result.Key
		}
	}
	return resp, nil
}

// plan reads the stored comments, and decides what to write. The token is stored in each written
// comment, so that a retry finds out whether an earlier attempt has committed.
func (r *router) plan(ctx context.Context, s *session, writes []*write, token string) (*plan, error) {
	p := &plan{session: s}
	for {
		places, err := r.placesOf(ctx, s, writes)
		if err != nil {
			return nil, err
		}
		found, err := s.find(ctx, places, nil)
		if err != nil {
			return nil, err
		}
		if token != "" && slices.ContainsFunc(slices.Collect(maps.Values(found)), func(e *pb.EntityResult) bool {
			return slices.Contains(tokens(e), token)
		}) {
			p.written = true
			for _, w := range writes {
				result := &pb.MutationResult{Version: found[w.id].GetVersion()}
				if w.drawn {
					result.Key = r.databases[0].under(plainKind, w.id)
				}
				p.results = append(p.results, result)
			}
			return p, nil
		}
		taken := false
		for _, w := range writes {
			if w.drawn && found[w.id] != nil {
				w.id, taken = 0, true // another process has drawn the same ID, so draw another one
			}
		}
		if !taken {
			return p, r.fill(p, writes, found, places, token)
		}
	}
}

// placesOf draws the IDs of new comments. It returns the kinds that may have each comment of the
// writes, by ID.
func (r *router) placesOf(ctx context.Context, s *session, writes []*write) (map[ID][]string, error) {
	var bad keyErrors
	all := make(map[ID][]string)
	for _, w := range writes {
		if !w.own {
			continue
		}
		if w.id == 0 {
			id, err := r.draw(ctx, s, w)
			if err != nil {
				bad.add(w.position, err)
				continue
			}
			w.id = id
		}
		places, err := s.places(w.id)
		if w.entity != nil {
			bad.add(w.position, err)
		}
		all[w.id] = places
	}
	return all, bad.err()
}

// draw draws the ID of the new comment that w writes. The comment's order determines the shard in
// the ID, and its time of creation the ID's time. Without such a time, the ID has the present time.
func (r *router) draw(ctx context.Context, s *session, w *write) (ID, *KeyError) {
	g, err := r.generator(s.db.number, shardOf(w.order, s.layout.written()))
	var id ID
	if err == nil {
		var at time.Time
		if at, err = timeOf(w.entity, createdProperty); err == nil {
			if at.IsZero() {
				id, err = g.Next(ctx)
			} else {
				id, err = g.At(at)
			}
		}
	}
	if err != nil {
		return 0, &KeyError{Key: clientKey(w.entity.Key), Reason: err.Error()}
	}
	return id, nil
}

// fill adds the mutations for the writes to a plan. The map found has the stored comments, places
// the kinds that may have each comment, and token is stored in each written comment.
func (r *router) fill(p *plan, writes []*write, found map[ID]*pb.EntityResult, places map[ID][]string,
	token string) error {
	l := p.session.layout
	var bad keyErrors
	for _, w := range writes {
		if !w.own {
			p.mutations, p.results = append(p.mutations, w.mutation), append(p.results, nil)
			continue
		}
		stored := found[w.id]
		if w.entity == nil {
			kind := l.all(p.session.db.number, len(r.databases))[0] // nothing is stored, so the kind does not matter
			if stored != nil {
				kind = kindIn(stored)
			}
			p.mutations = append(p.mutations,
				&pb.Mutation{Operation: &pb.Mutation_Delete{Delete: p.session.db.under(kind,
					w.id)}})
			p.results = append(p.results, nil)
			delete(found, w.id)
			continue
		}
		switch {
		case stored != nil && w.mutation.GetInsert() != nil:
			return status.Errorf(codes.AlreadyExists, "entity already exists: %v", plain(w.id))
		case stored == nil && w.mutation.GetUpdate() != nil:
			return status.Errorf(codes.NotFound, "no entity to update: %v", plain(w.id))
		}
		entity, err := r.stamp(w, stored, token)
		var order int64
		if err == nil {
			order, err = orderOf(entity)
		}
		kind := l.kind(order)
		if err == nil && !slices.Contains(places[w.id], kind) {
			err = fmt.Errorf("order %d is in shard %d, and the ID in shard %d: delete the comment, and put it under "+
				"a new ID",
				order, shardOf(order, l.written()), w.id.Logical())
		}
		if err != nil {
			bad.add(w.position, &KeyError{Key: clientKey(w.entity.Key), Reason: err.Error()})
			continue
		}
		entity.Key = p.session.db.under(kind, w.id)
		m := &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: entity},
			PropertyTransforms: w.mutation.PropertyTransforms}
		if stored == nil {
			m.Operation = &pb.Mutation_Insert{Insert: entity}
		} else if from := kindIn(stored); from != kind {
			p.leave = append(p.leave,
				&pb.Mutation{Operation: &pb.Mutation_Delete{Delete: p.session.db.under(from, w.id)}})
		}
		result := &pb.MutationResult{}
		if w.drawn {
			result.Key = r.databases[0].under(plainKind, w.id)
		}
		p.mutations, p.results = append(p.mutations, m), append(p.results, result)
		found[w.id] = &pb.EntityResult{Entity: entity}
	}
	return bad.err()
}

// kindIn returns the kind in which a comment is stored.
func kindIn(stored *pb.EntityResult) string { return stored.Entity.Key.Path[0].Kind }

// tokens returns the tokens in a stored comment, which identify its last writes.
func tokens(stored *pb.EntityResult) (all []string) {
	for _, v := range stored.GetEntity().GetProperties()[writesProperty].GetArrayValue().GetValues() {
		all = append(all, v.GetStringValue())
	}
	return all
}

// stamp returns the entity that a write stores. It has the caller's properties. If the write has a
// mask, it has only those in the mask, and otherwise the stored ones. It sets the times of creation
// and update, and adds the write's token to the tokens of the last writes.
func (r *router) stamp(w *write, stored *pb.EntityResult, token string) (*pb.Entity, error) {
	e := &pb.Entity{Properties: maps.Clone(w.entity.Properties)}
	if e.Properties == nil {
		e.Properties = make(map[string]*pb.Value)
	}
	if mask := w.mutation.PropertyMask; mask != nil {
		e.Properties = maps.Clone(stored.GetEntity().GetProperties())
		if e.Properties == nil {
			e.Properties = make(map[string]*pb.Value)
		}
		for _, name := range mask.Paths {
			if strings.Contains(name, ".") && w.entity.Properties[name] == nil {
				return nil, fmt.Errorf("the mask has %s: name a whole property", name)
			}
			if v := w.entity.Properties[name]; v != nil {
				e.Properties[name] = v
			} else {
				delete(e.Properties, name)
			}
		}
	}
	created, err := timeOf(e, createdProperty)
	if err != nil {
		return nil, err
	}
	updated, err := timeOf(e, updatedProperty)
	if err != nil {
		return nil, err
	}
	if created, updated, err = r.times(w.id, stored, created, updated); err != nil {
		return nil, err
	}
	setTime(e, createdProperty, created)
	setTime(e, updatedProperty, updated)
	writes := tokens(stored)
	if token != "" {
		writes = append(writes[max(0, len(writes)-recentWrites+1):], token)
	}
	list := &pb.ArrayValue{}
	for _, t := range writes {
		list.Values = append(list.Values, &pb.Value{ValueType: &pb.Value_StringValue{StringValue: t},
			ExcludeFromIndexes: true})
	}
	delete(e.Properties, writesProperty)
	if len(writes) > 0 {
		e.Properties[writesProperty] = &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	}
	return e, nil
}

// times returns the times Created and Updated for a write. It depends on the ID, the stored
// comment, and the times that the caller gives.
func (r *router) times(id ID, stored *pb.EntityResult, created, updated time.Time) (time.Time, time.Time, error) {
	now := r.now().Truncate(time.Microsecond)
	before, _ := timeOf(stored.GetEntity(), createdProperty)
	given := !created.IsZero()
	switch {
	case given && !before.IsZero() && !created.Equal(before):
		return created, updated,
			fmt.Errorf("it was created at %v, and that can't become %v: leave %s as it is, or empty",
				before.Format(time.RFC3339Nano), created.Format(time.RFC3339Nano), createdProperty)
	case !before.IsZero():
		created = before
	case given && !created.Truncate(time.Millisecond).Equal(id.Time()):
		return created, updated,
			fmt.Errorf("its ID says that it was created at %v, and its %s is %v: leave that empty, or "+
				"put the comment under a new ID", id.Time().Format(time.RFC3339Nano), createdProperty,
				created.Format(time.RFC3339Nano))
	case !given:
		created = id.Time()
	}
	switch {
	case stored != nil || updated.After(now):
		updated = now
	case !given || updated.IsZero():
		updated = created
	}
	if updated.Before(created) { // a clock was set back, or the caller's Created is in the future
		updated = created
	}
	return created, updated, nil
}

// timeOf returns a property whose value is a time, in whole microseconds as Datastore stores it. It
// returns the zero time if the comment lacks the property.
func timeOf(e *pb.Entity, name string) (time.Time, error) {
	switch v := e.GetProperties()[name].GetValueType().(type) {
	case nil, *pb.Value_NullValue:
		return time.Time{}, nil
	case *pb.Value_TimestampValue:
		return v.TimestampValue.AsTime().Truncate(time.Microsecond), nil
	default:
		return time.Time{}, fmt.Errorf("its %s is no time", name)
	}
}

// setTime sets a property of a comment to a time. The property keeps the caller's index flag.
func setTime(e *pb.Entity, name string, t time.Time) {
	v := &pb.Value{}
	if given := e.Properties[name]; given != nil {
		v = proto.Clone(given).(*pb.Value)
	}
	v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}
	e.Properties[name] = v
}
