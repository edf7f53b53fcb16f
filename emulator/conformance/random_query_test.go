package conformance

import (
	"fmt"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A randomQuery is a query whose keys have no project yet, so that it can be sent to several
// Datastores.
type randomQuery struct{ *pb.Query }

// in returns the query with the project and database of e.
func (q randomQuery) in(e *env) *pb.Query {
	c := proto.CloneOf(q.Query)
	var visit func(f *pb.Filter)
	visit = func(f *pb.Filter) {
		for _, sub := range f.GetCompositeFilter().GetFilters() {
			visit(sub)
		}
		if k := f.GetPropertyFilter().GetValue().GetKeyValue(); k != nil {
			k.PartitionId = &pb.PartitionId{ProjectId: e.project}
		}
	}
	visit(c.Filter)
	return c
}

// query returns a step that runs a random query with a limit, and continues it from its cursor.
func (g *generator) query() step {
	q, text := g.filtered()
	limit := 1 + g.rng.IntN(5)
	offset := g.rng.IntN(6) / 4
	return step{fmt.Sprintf("query %s limit %d offset %d, twice", text, limit, offset), func(e *env) string {
		first := q.in(e)
		first.Limit, first.Offset = wrapperspb.Int32(int32(limit)), int32(offset)
		s := ""
		pages := 3
		if slices.ContainsFunc(first.Order, func(o *pb.PropertyOrder) bool {
			return slices.Contains(arrays, o.Property.Name)
		}) && g.dialect.lacks(arrayCursors) {
			pages = 1
		}
		if len(first.Projection) > 0 && g.dialect.lacks(projectionCursors) {
			pages = 1
		}
		for range pages {
			resp, err := e.runQuery(first)
			if err != nil {
				return s + outcome(err)
			}
			var all []string
			for _, r := range resp.Batch.EntityResults {
				all = append(all, fullKey(r.Entity.Key)+showAll(r.Entity.Properties))
			}
			s += strings.Join(all, " ") + "; "
			if len(all) == 0 {
				break
			}
			first.StartCursor, first.Offset = resp.Batch.EndCursor, 0
		}
		return s
	}}
}

// filtered returns a random query with filters, orders and a projection, and its text. The query
// uses only features that the emulator supports.
func (g *generator) filtered() (randomQuery, string) {
	q := &pb.Query{Kind: []*pb.KindExpression{{Name: "D"}}}
	var filters []*pb.Filter
	var equal, between []string
	filter := func(name string, op pb.PropertyFilter_Operator, v *pb.Value) *pb.Filter {
		return &pb.Filter{
			FilterType: &pb.Filter_PropertyFilter{
				PropertyFilter: &pb.PropertyFilter{Property: &pb.PropertyReference{Name: name}, Op: op, Value: v}}}
	}
	add := func(f *pb.Filter) { filters = append(filters, f) }
	disjunction := false
	names := slices.Concat(plain, arrays, []string{"in.p"})
	switch g.rng.IntN(5) {
	case 0, 1:
		for range 1 + g.rng.IntN(2) {
			name := pick(g.rng, names...)
			equal = append(equal, name)
			add(filter(name, pb.PropertyFilter_EQUAL, value(g.scalar())))
		}
	case 2:
		if !g.dialect.lacks(disjunctions) {
			disjunction = true
			name := pick(g.rng, plain...)
			equal = append(equal, name)
			if g.rng.IntN(2) == 0 {
				add(filter(name, pb.PropertyFilter_IN, value([]any{g.scalar(), g.scalar(), g.scalar()})))
			} else {
				other := pick(g.rng, names...)
				equal = append(equal, other)
				add(&pb.Filter{
					FilterType: &pb.Filter_CompositeFilter{
						CompositeFilter: &pb.CompositeFilter{Op: pb.CompositeFilter_OR, Filters: []*pb.Filter{
							filter(name, pb.PropertyFilter_EQUAL, value(g.scalar())),
							filter(other, pb.PropertyFilter_EQUAL, value(g.scalar())),
						}}}})
			}
		}
	}
	sortable := plain
	if !g.dialect.lacks(sortedArrays) {
		sortable = names
	}
	if g.rng.IntN(3) == 0 {
		name := pick(g.rng, sortable...)
		if !slices.Contains(equal, name) {
			between = append(between, name)
			ops := []pb.PropertyFilter_Operator{pb.PropertyFilter_GREATER_THAN, pb.PropertyFilter_GREATER_THAN_OR_EQUAL,
				pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_LESS_THAN_OR_EQUAL}
			if !g.dialect.lacks(notEqual) {
				ops = append(ops, pb.PropertyFilter_NOT_EQUAL)
			}
			add(filter(name, pick(g.rng, ops...), value(g.scalar())))
			if g.rng.IntN(3) == 0 {
				add(filter(name, pick(g.rng, ops[:4]...), value(g.scalar())))
			}
		}
	}
	if !g.dialect.lacks(manyProperties) && g.rng.IntN(4) == 0 {
		if name := pick(g.rng, plain...); !slices.Contains(equal, name) && !slices.Contains(between, name) {
			between = append(between, name)
			add(filter(name, pb.PropertyFilter_GREATER_THAN_OR_EQUAL, value(g.scalar())))
		}
	}
	if g.rng.IntN(4) == 0 && len(between) == 0 {
		op := pick(g.rng, pb.PropertyFilter_GREATER_THAN, pb.PropertyFilter_LESS_THAN_OR_EQUAL,
			pb.PropertyFilter_HAS_ANCESTOR)
		path := g.key()
		if op == pb.PropertyFilter_HAS_ANCESTOR {
			path = path[:1]
		}
		add(filter("__key__", op, value(&pb.Key{Path: path})))
		if op != pb.PropertyFilter_HAS_ANCESTOR {
			between = append(between, "__key__")
		}
	}
	g.order(q, equal, between, sortable)
	byKey := slices.Contains(between, "__key__") && g.dialect.lacks(projectionsByKey)
	if g.rng.IntN(5) == 0 && !disjunction && !byKey {
		g.project(q, equal, sortable)
	}
	switch len(filters) {
	case 0:
	case 1:
		q.Filter = filters[0]
	default:
		q.Filter = &pb.Filter{
			FilterType: &pb.Filter_CompositeFilter{CompositeFilter: &pb.CompositeFilter{Op: pb.CompositeFilter_AND,
				Filters: filters}}}
	}
	return randomQuery{q}, q.String()
}

// order adds random orders to a query.
func (g *generator) order(q *pb.Query, equal, between, sortable []string) {
	add := func(name string, descending bool) {
		o := &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name}, Direction: pb.PropertyOrder_ASCENDING}
		if descending {
			o.Direction = pb.PropertyOrder_DESCENDING
		}
		q.Order = append(q.Order, o)
	}
	descending := g.rng.IntN(2) == 0
	switch {
	case len(between) > 0 && (g.rng.IntN(2) == 0 || g.dialect.lacks(manyProperties)):
		add(between[0], descending)
	case len(between) == 0 && g.rng.IntN(2) == 0:
		if name := pick(g.rng, sortable...); !slices.Contains(equal, name) {
			add(name, descending)
		}
	}
	if len(q.Order) == 0 || q.Order[0].Property.Name == "__key__" {
		return
	}
	if g.rng.IntN(3) == 0 {
		if name := pick(g.rng, plain...); !slices.Contains(equal, name) && q.Order[0].Property.Name != name {
			add(name, descending)
		}
	}
	if descending && g.dialect.lacks(tiesDescending) {
		for _, name := range between {
			if !slices.ContainsFunc(q.Order, func(o *pb.PropertyOrder) bool { return o.Property.Name == name }) {
				add(name, true)
			}
		}
		add("__key__", false)
	}
}

// project turns the query into a projection of one or two properties, or into a keys-only query.
func (g *generator) project(q *pb.Query, equal, sortable []string) {
	names := []string{pick(g.rng, sortable...)}
	if other := pick(g.rng, plain...); g.rng.IntN(2) == 0 && other != names[0] {
		names = append(names, other)
	}
	if g.rng.IntN(4) == 0 {
		names = []string{"__key__"}
	}
	for _, name := range names {
		if slices.Contains(equal, name) {
			return
		}
	}
	for _, name := range names {
		q.Projection = append(q.Projection, &pb.Projection{Property: &pb.PropertyReference{Name: name}})
	}
	if names[0] != "__key__" && len(q.Order) == 0 && q.Filter == nil && g.rng.IntN(2) == 0 &&
		!g.dialect.lacks(distinctOn) {
		q.DistinctOn = []*pb.PropertyReference{{Name: names[0]}}
	}
}
