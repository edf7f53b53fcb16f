package main

import (
	"fmt"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A set has names of databases or kinds: those in which a condition may have results. A nil set
// means all.
type set map[string]bool

func setOf(names ...string) set {
	s := make(set)
	for _, name := range names {
		s[name] = true
	}
	return s
}

func (s set) and(other set) set {
	if s == nil || other == nil {
		if s == nil {
			return other
		}
		return s
	}
	both := make(set)
	for name := range s {
		if other[name] {
			both[name] = true
		}
	}
	return both
}

func (s set) or(other set) set {
	if s == nil || other == nil {
		return nil
	}
	either := make(set)
	for _, some := range []set{s, other} {
		for name := range some {
			either[name] = true
		}
	}
	return either
}

// narrow returns the set of databases or kinds in which a condition may have results. The functions
// ofOrder and ofKey return the set for an order and for a key.
func narrow(f *pb.Filter, ofOrder func(int64) set, ofKey func(*pb.Key) set) set {
	if c := f.GetCompositeFilter(); c != nil {
		var all set
		for i, part := range c.Filters {
			s := narrow(part, ofOrder, ofKey)
			switch {
			case i == 0:
				all = s
			case c.Op == pb.CompositeFilter_OR:
				all = all.or(s)
			default:
				all = all.and(s)
			}
		}
		return all
	}
	p := f.GetPropertyFilter()
	values := []*pb.Value{p.GetValue()}
	switch {
	case p == nil:
		return nil
	case p.Op == pb.PropertyFilter_IN:
		values = p.Value.GetArrayValue().GetValues()
	case p.Op != pb.PropertyFilter_EQUAL && p.Op != pb.PropertyFilter_HAS_ANCESTOR:
		return nil
	}
	where := setOf()
	switch name := p.Property.GetName(); name {
	case orderProperty:
		for _, v := range values {
			if n, ok := v.GetValueType().(*pb.Value_IntegerValue); ok && n.IntegerValue >= 0 {
				where = where.or(ofOrder(n.IntegerValue))
			}
		}
	case keyProperty:
		for _, v := range values {
			if key := v.GetKeyValue(); own(key) {
				where = where.or(ofKey(key))
			}
		}
	default:
		return nil
	}
	return where
}

// databasesOf returns the databases in which a condition may have results. A key that no comment
// can have is in none of them.
func (r *router) databasesOf(f *pb.Filter) (all []*database) {
	where := narrow(f, func(order int64) set { return setOf(fmt.Sprint(r.database(order).number)) },
		func(key *pb.Key) set {
			id, err := r.shaped(key)
			if err != nil {
				return setOf()
			}
			return setOf(fmt.Sprint(id.Physical()))
		})
	for _, d := range r.databases {
		if where == nil || where[fmt.Sprint(d.number)] {
			all = append(all, d)
		}
	}
	return all
}

// kindsOf returns the kinds in the session's database in which a condition may have results.
func (s *session) kindsOf(r *router, f *pb.Filter) (all []string) {
	where := narrow(f, func(order int64) set { return setOf(s.layout.kinds(order)...) },
		func(key *pb.Key) set {
			id, err := r.shaped(key)
			if err != nil || r.databases[id.Physical()] != s.db {
				return setOf()
			}
			return setOf(s.layout.places(id)...)
		})
	for _, kind := range s.layout.all(s.db.number, len(r.databases)) {
		if where == nil || where[kind] {
			all = append(all, kind)
		}
	}
	return all
}

// within converts a condition from the kind that callers use to the kind of a shard. It changes the
// kind in keys that are compared with __key__. It leaves keys in other properties unchanged,
// because these store the callers' keys.
func within(f *pb.Filter, kind string) *pb.Filter {
	f, _ = proto.Clone(f).(*pb.Filter)
	rename(f, kind)
	return f
}

func rename(f *pb.Filter, kind string) {
	for _, part := range f.GetCompositeFilter().GetFilters() {
		rename(part, kind)
	}
	p := f.GetPropertyFilter()
	if p == nil || p.Property.GetName() != keyProperty {
		return
	}
	values := []*pb.Value{p.Value}
	if list := p.Value.GetArrayValue(); list != nil {
		values = list.Values
	}
	for _, v := range values {
		if key := v.GetKeyValue(); len(key.GetPath()) > 0 {
			v.ValueType = &pb.Value_KeyValue{KeyValue: renamed(key, kind)}
		}
	}
}

// renamed converts a key in a condition from the kind that callers use to the kind of a shard. The
// result has the same order relative to the shard's keys as the given key has to the keys that
// callers see.
func renamed(key *pb.Key, kind string) *pb.Key {
	to := &pb.Key{PartitionId: &pb.PartitionId{NamespaceId: key.GetPartitionId().GetNamespaceId()}}
	for _, el := range key.Path {
		to.Path = append(to.Path, proto.Clone(el).(*pb.Key_PathElement))
	}
	switch root := to.Path[0]; {
	case root.Kind == plainKind:
		root.Kind = kind
	case root.Kind > plainKind && root.Kind <= kind: // must also come after all comments of the shard
		root.Kind = kind + "~"
	}
	return to
}

// ofTable reports whether a query is over comments. It returns an error for a query whose results
// would show how comments are stored.
func ofTable(partition *pb.PartitionId, q *pb.Query) (bool, error) {
	switch {
	case q == nil:
		return false, status.Error(codes.Unimplemented, "the store does not read GQL: ask by a query")
	case len(q.Kind) == 0 && !below(q.Filter):
		return false, status.Error(codes.InvalidArgument, "a query without a kind would be of the shards: name a kind")
	case len(q.Kind) != 1 || q.Kind[0].Name != plainKind:
		return false, nil
	case partition.GetNamespaceId() != "":
		return false,
			status.Errorf(codes.InvalidArgument, "comments are in the default namespace, and the query is of %q",
				partition.NamespaceId)
	case slices.ContainsFunc(q.Order, func(o *pb.PropertyOrder) bool { return o.Property.GetName() == "__scatter__" }):
		return false,
			status.Errorf(codes.InvalidArgument, "comments of several shards can't be ordered by __scatter__, "+
				"so split.Query and jobs do not read the kind %s: name the kinds of its shards, such as %s, on a "+
				"client of "+
				"their database", plainKind, kindOf(0, 20))
	case q.FindNearest != nil:
		return false, status.Error(codes.Unimplemented, "the store does not find nearest comments")
	}
	return true, nil
}

// below reports whether all results of a condition must have an ancestor that is no comment.
func below(f *pb.Filter) bool {
	for _, part := range f.GetCompositeFilter().GetFilters() {
		if f.GetCompositeFilter().Op != pb.CompositeFilter_OR && below(part) {
			return true
		}
	}
	p := f.GetPropertyFilter()
	return p.GetOp() == pb.PropertyFilter_HAS_ANCESTOR && !own(p.Value.GetKeyValue())
}

// isShard reports whether a kind is the kind of a shard.
func isShard(kind string) bool {
	rest, ok := strings.CutPrefix(kind, plainKind)
	var shards, shard int
	n, _ := fmt.Sscanf(rest, "%d_%d", &shards, &shard)
	return ok && n == 2 && kind == kindOf(shard, shards)
}
