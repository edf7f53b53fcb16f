package dsemu

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A query is a checked request: all that a scan needs, in ordered forms.
//
// Its results are rows, see [query.rows]: one for each entity that satisfies one
// of the conjunctions, or, for a projection, one for each combination of values.
type query struct {
	namespace  string
	kind       string // empty: entities of all kinds
	keysOnly   bool
	projected  []string // by name; empty: whole entities
	aggregated []string // by name: what is summed and averaged; then they are what is projected
	distinct   int      // how many of the orders come first and make a group, of which the first row is a result
	anyOf      []*conjunction
	orders     []order // explicit, then those that inequalities and projection imply
	after      string  // sort key of the start cursor
	afterGroup string
	until      string          // sort key of the end cursor
	bounded    bool            // there is one
	offset     int             // rows to skip
	limit      int             // negative: none
	scatter    int             // proportion of the database
	chosen     int             // how many of the orders come before those that only a projection implies, in whatever order an index has them
	indexes    []indexes.Index // that serve the query
	scanned    int64           // entries of indexes that were looked at
	print      uint32          // tells the query from others, in its cursors
}

type order struct {
	property   string
	descending bool
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "the embedded Datastore does not serve %s", what)
}

// parse checks a query. Of one whose results are aggregated the properties are
// given that are summed or averaged.
func (db *database) parse(p *pb.PartitionId, q *pb.Query, aggregated ...string) (*query, error) {
	partition, err := db.Partition(p)
	if err != nil {
		return nil, err
	}
	parsed := &query{namespace: partition.NamespaceId, limit: -1, scatter: db.opts.Scatter}
	switch {
	case len(q.GetKind()) > 1:
		return nil, model.Invalid("a query has one kind, this one has %d", len(q.Kind))
	case len(q.GetKind()) == 1 && q.Kind[0].GetName() == "":
		return nil, model.Invalid("the kind of a query is empty")
	case q.FindNearest != nil:
		return nil, unimplemented("find_nearest")
	case q.Offset < 0:
		return nil, model.Invalid("the offset of a query is negative: %d", q.Offset)
	}
	if len(q.Kind) == 1 {
		parsed.kind = q.Kind[0].Name
	}
	parsed.offset = int(q.Offset)
	if q.Limit != nil {
		if q.Limit.Value < 0 {
			return nil, model.Invalid("the limit of a query is negative: %d", q.Limit.Value)
		}
		parsed.limit = int(q.Limit.Value)
	}
	if parsed.anyOf, err = db.parseFilter(parsed.namespace, q.Filter); err != nil {
		return nil, err
	}
	if err := parsed.parseProjection(q.Projection); err != nil {
		return nil, err
	}
	if err := parsed.project(aggregated); err != nil {
		return nil, err
	}
	if err := parsed.parseOrders(q.Order); err != nil {
		return nil, err
	}
	if err := parsed.parseDistinct(q.DistinctOn); err != nil {
		return nil, err
	}
	if err := parsed.check(); err != nil {
		return nil, err
	}
	parsed.implyOrders()
	if err := parsed.chooseIndexes(db.opts.Indexes); err != nil {
		return nil, err
	}
	parsed.print = parsed.fingerprint()
	return parsed, parsed.parseCursors(q.StartCursor, q.EndCursor)
}

// parseProjection reads what a query returns. __key__ alone is a query for keys;
// beside properties it says nothing, since each result has its key.
func (q *query) parseProjection(projection []*pb.Projection) error {
	for _, p := range projection {
		name := p.GetProperty().GetName()
		switch {
		case name == model.KeyProperty:
			q.keysOnly = true
			continue
		case name == "" || model.Reserved(name):
			return model.Invalid("a projection can't have the property %q", name)
		case slices.Contains(q.projected, name):
			return model.Invalid("the projection has the property %q twice", name)
		}
		q.projected = append(q.projected, name)
	}
	if len(q.projected) > 0 {
		q.keysOnly = false
		slices.Sort(q.projected)
	}
	return nil
}

// project has the query return the properties that are to be aggregated, as a
// projection does: they come out of its index, one row for each of an array's
// values.
func (q *query) project(aggregated []string) error {
	switch {
	case len(aggregated) == 0:
		return nil
	case q.keysOnly:
		return model.Invalid("properties can't be aggregated over a query that only returns keys")
	case len(q.projected) == 0:
		q.projected = aggregated
	}
	for _, name := range aggregated {
		if !slices.Contains(q.projected, name) {
			return model.Invalid("the aggregated property %q is not in the projection of the query", name)
		}
	}
	q.aggregated = aggregated
	return nil
}

func (q *query) parseOrders(orders []*pb.PropertyOrder) error {
	for _, o := range orders {
		name := o.GetProperty().GetName()
		switch {
		case name == "":
			return model.Invalid("an order names no property")
		case name == scatterProperty && (o.Direction == pb.PropertyOrder_DESCENDING || !alone(orders)):
			return unimplemented("an order by __scatter__ that descends or is one of several")
		case name != scatterProperty && name != model.KeyProperty && model.Reserved(name):
			return model.Invalid("an order can't be by the property %s", name)
		case q.ordered(name):
			return model.Invalid("two orders are by the property %q", name)
		}
		q.orders = append(q.orders, order{name, o.Direction == pb.PropertyOrder_DESCENDING})
	}
	if q.ordered(scatterProperty) {
		q.orders = q.orders[:1] // what is equal comes by key in any case
	}
	return nil
}

// alone reports whether the first order is the only one, but for one by ascending
// keys behind it.
func alone(orders []*pb.PropertyOrder) bool {
	rest := orders[1:]
	return len(rest) == 0 || len(rest) == 1 && rest[0].GetProperty().GetName() == model.KeyProperty && rest[0].Direction != pb.PropertyOrder_DESCENDING
}

func (q *query) ordered(property string) bool {
	return slices.ContainsFunc(q.orders, func(o order) bool { return o.property == property })
}

// parseDistinct puts the properties that results are to be distinct on before
// all other orders.
func (q *query) parseDistinct(on []*pb.PropertyReference) error {
	var names []string
	for _, p := range on {
		switch name := p.GetName(); {
		case name == "" || model.Reserved(name):
			return model.Invalid("results can't be distinct on the property %q", name)
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	for i, o := range q.orders {
		if i < len(names) && !slices.Contains(names, o.property) {
			return model.Invalid("All group by properties must be ordered before any non group by properties.")
		}
	}
	explicit := min(len(names), len(q.orders))
	for _, name := range names {
		if !q.ordered(name) {
			q.orders = slices.Insert(q.orders, explicit, order{property: name})
			explicit++
		}
	}
	q.distinct = len(names)
	return nil
}

// implyOrders adds the orders that follow from the rest, by name. First come the
// properties of inequalities, or __key__ if that has the only one, in the last
// order's direction, as Google's Firestore emulator has it; then what is projected,
// whose values an index has to hold.
func (q *query) implyOrders() {
	descending := len(q.orders) > 0 && q.orders[len(q.orders)-1].descending
	var implied []string
	for _, c := range q.anyOf {
		for _, iv := range c.between {
			if !slices.Contains(implied, iv.property) && !q.ordered(iv.property) {
				implied = append(implied, iv.property)
			}
		}
	}
	slices.Sort(implied)
	if len(q.orders) == 0 && len(implied) == 0 && slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return c.ranged }) {
		implied = []string{model.KeyProperty}
	}
	if !q.byScatter() {
		for _, name := range implied {
			q.orders = append(q.orders, order{name, descending})
		}
	}
	q.chosen = len(q.orders)
	for _, name := range q.projected {
		if !q.ordered(name) {
			q.orders = append(q.orders, order{name, descending && q.aggregated != nil})
		}
	}
}

// check refuses combinations that no index can serve.
func (q *query) check() error {
	for _, c := range q.anyOf {
		for _, e := range c.equal {
			if q.aggregated == nil && slices.Contains(q.projected, e.property) {
				return model.Invalid("Cannot use projection on a property with an equality filter.")
			}
		}
		ranged := c.lo != "" || c.hi != "" || len(c.between) > 0
		if q.byScatter() && ranged {
			return model.Invalid("The first sort property must be the same as the property to which the inequality filter is applied.")
		}
	}
	if q.byScatter() && q.aggregated != nil {
		return unimplemented("sums and averages in the order of __scatter__")
	}
	if q.kind == "" {
		switch {
		case slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal)+len(c.between) > 0 }):
			return model.Invalid("kind is required for all filters except __key__ and ancestor")
		case q.aggregated == nil && len(q.projected) > 0:
			return model.Invalid("kind is required for projections except __key__")
		case slices.ContainsFunc(q.orders, func(o order) bool { return o.property != model.KeyProperty || o.descending }):
			return model.Invalid("kind is required for all orders except __key__ ascending")
		}
	}
	return nil
}

// chooseIndexes finds the indexes that serve the query, and refuses one that needs
// an index which is not there. What only a projection implies is ordered as the
// first index has it that serves.
func (q *query) chooseIndexes(set *indexes.Set) error {
	if q.byScatter() || model.Reserved(q.kind) {
		set = nil
	}
	for _, c := range q.anyOf {
		shape := indexes.Shape{Kind: q.kind, Ancestor: c.ancestor != ""}
		for _, e := range c.equal {
			if !slices.Contains(shape.Equal, e.property) {
				shape.Equal = append(shape.Equal, e.property)
			}
		}
		var rest []int // orders that the index decides
		for i, o := range q.orders {
			p := indexes.Property{Name: o.property, Descending: o.descending}
			switch {
			case slices.Contains(shape.Equal, o.property):
			case i < q.chosen:
				shape.Orders = append(shape.Orders, p)
			default:
				shape.Rest, rest = append(shape.Rest, p), append(rest, i)
			}
		}
		used, missing := set.Serve(shape)
		if missing != nil {
			return status.Errorf(codes.FailedPrecondition, "no matching index found. recommended index is:\n%s", missing)
		}
		q.indexes = append(q.indexes, used...)
		tail := used[0].Properties
		for n, i := range rest {
			p := tail[len(tail)-len(rest)+n]
			q.orders[i] = order{p.Name, p.Descending}
		}
		q.chosen = len(q.orders) // the other conjunctions follow the first
	}
	return nil
}

func (q *query) byScatter() bool {
	return len(q.orders) == 1 && q.orders[0].property == scatterProperty
}
