package main

import (
	"context"
	"maps"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
)

// mostKeys is the maximum number of keys in a lookup.
const mostKeys = 1000

// find reads stored comments. The map places has the ID of each comment, and the kinds of shards in
// which the comment may be stored. If the mask is not nil, only its properties are read. Found
// entities have keys with these kinds.
func (s *session) find(ctx context.Context, places map[ID][]string, mask *pb.PropertyMask) (map[ID]*pb.EntityResult,
	error) {
	var keys []*pb.Key
	for _, id := range slices.Sorted(maps.Keys(places)) {
		for _, kind := range places[id] {
			keys = append(keys, s.db.under(kind, id))
		}
	}
	results, err := s.get(ctx, keys, mask)
	found := make(map[ID]*pb.EntityResult)
	for _, result := range results {
		found[ID(clientKey(result.Entity.Key).ID)] = result
	}
	return found, err
}

// get reads the entities with the given keys, and leaves out those that do not exist.
func (s *session) get(ctx context.Context, keys []*pb.Key, mask *pb.PropertyMask) (found []*pb.EntityResult,
	err error) {
	for len(keys) > 0 {
		some := keys[:min(len(keys), mostKeys)]
		keys = keys[len(some):]
		resp, err := read(ctx, func() (*pb.LookupResponse, error) {
			return s.db.api().Lookup(ctx, &pb.LookupRequest{ProjectId: s.db.project, DatabaseId: s.db.name, Keys: some,
				ReadOptions: s.options(), PropertyMask: mask})
		})
		if err != nil {
			return nil, err
		}
		found = append(found, resp.Found...)
		keys = append(slices.Clone(resp.Deferred), keys...)
	}
	return found, nil
}

// lookup answers a lookup of comments, whose IDs name their shards, and of entities of other kinds.
func (r *router) lookup(ctx context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	return reading(ctx, r, req.ReadOptions, func(v *view) (*pb.LookupResponse, error) { return v.lookup(ctx, req) })
}

func (v *view) lookup(ctx context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	r := v.router
	if !slices.ContainsFunc(req.Keys, own) && v.tx == nil {
		return r.databases[0].api().Lookup(ctx, req)
	}
	ids, others := make(map[*database][]ID), []*pb.Key(nil)
	resp := &pb.LookupResponse{}
	for _, key := range req.Keys {
		if !own(key) {
			others = append(others, key)
			continue
		}
		id, err := r.shaped(key)
		if err != nil { // no write with this key can have succeeded
			resp.Missing = append(resp.Missing, &pb.EntityResult{Entity: &pb.Entity{Key: key}})
			continue
		}
		d := r.databases[id.Physical()]
		ids[d] = append(ids[d], id)
	}
	answers := make([]*pb.LookupResponse, len(r.databases)+1)
	group, ctx := errgroup.WithContext(ctx)
	for d, some := range ids {
		group.Go(func() (err error) {
			answers[d.number], err = v.comments(ctx, d, some, req.PropertyMask)
			return err
		})
	}
	if len(others) > 0 {
		group.Go(func() (err error) {
			answers[len(r.databases)], err = v.others(ctx, others, req.PropertyMask)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	resp.Transaction = v.begun
	for _, a := range answers {
		resp.Found = append(resp.Found, a.GetFound()...)
		resp.Missing = append(resp.Missing, a.GetMissing()...)
	}
	return resp, nil
}

// comments looks up comments of one database, by their IDs. With a mask, it returns only the
// properties in the mask.
func (v *view) comments(ctx context.Context, d *database, ids []ID, mask *pb.PropertyMask) (*pb.LookupResponse, error) {
	s, err := v.on(ctx, d)
	if err != nil {
		return nil, err
	}
	all := make(map[ID][]string, len(ids))
	for _, id := range ids {
		all[id] = s.layout.places(id)
	}
	found, err := s.find(ctx, all, mask)
	if err != nil {
		return nil, err
	}
	resp := &pb.LookupResponse{}
	for _, id := range ids {
		if result := found[id]; result != nil {
			resp.Found = append(resp.Found, v.router.shown(result))
		} else {
			resp.Missing = append(resp.Missing,
				&pb.EntityResult{Entity: &pb.Entity{Key: v.router.databases[0].under(plainKind,
					id)}})
		}
	}
	return resp, nil
}

// others looks up entities of other kinds.
func (v *view) others(ctx context.Context, keys []*pb.Key, mask *pb.PropertyMask) (*pb.LookupResponse, error) {
	s, err := v.on(ctx, v.router.databases[0])
	if err != nil {
		return nil, err
	}
	found, err := s.get(ctx, keys, mask)
	if err != nil {
		return nil, err
	}
	resp := &pb.LookupResponse{Found: found}
	there := make(map[string]bool, len(found))
	for _, result := range found {
		there[nameOf(clientKey(result.Entity.Key))] = true
	}
	for _, key := range keys {
		if !there[nameOf(clientKey(key))] {
			resp.Missing = append(resp.Missing, &pb.EntityResult{Entity: &pb.Entity{Key: key}})
		}
	}
	return resp, nil
}

// shown converts a stored comment for callers: it changes the kind in its key to the plain kind,
// and removes the store's own properties.
func (r *router) shown(result *pb.EntityResult) *pb.EntityResult {
	shown := &pb.EntityResult{Entity: &pb.Entity{Properties: maps.Clone(result.Entity.Properties),
		Key: r.databases[0].under(plainKind, ID(clientKey(result.Entity.Key).ID))}, Version: result.Version,
		CreateTime: result.CreateTime, UpdateTime: result.UpdateTime, Cursor: result.Cursor}
	delete(shown.Entity.Properties, writesProperty)
	return shown
}
