package query

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A Query is a query that has passed the checks. It has everything that a scan needs, in ordered
// forms.
//
// Its results are rows: see [Query.Rows]. Each entity that satisfies a conjunction is a row. In a
// projection, an entity has a row for each combination of the projected values.
type Query struct {
	Namespace  string
	Kind       string // the kind; empty: entities of all kinds
	KeysOnly   bool
	Projected  []string // projected properties, sorted by name; empty: whole entities
	aggregated []string // properties that are summed or averaged, sorted by name; they are also projected
	// number of orders at the start that form a group (distinct-on); only a group's first row is a
	// result
	Distinct int
	anyOf    []*conjunction
	named    store.Names // the properties that the query reads
	// the orders: first the explicit ones, then those that inequalities and the projection imply
	orders  []store.Order
	Start   []byte // the start cursor
	From    string // the lowest sort key of rows after the start cursor
	To      string // the sort keys of rows before the end cursor are lower; empty: there is none
	Offset  int    // number of rows to skip
	Limit   int    // largest number of results; negative: no limit
	scatter int    // n; one in n entities has the property __scatter__
	// number of orders at the start that are not implied by the projection; the index decides on
	// the order of the rest
	chosen  int
	indexes []indexes.Index // the indexes that serve the query
	Scanned int64           // number of index entries that were read
	print   uint32          // a hash of the namespace and the orders, for the query's cursors
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "the embedded Datastore does not serve %s", what)
}

// Options are the settings of a database that queries depend on.
type Options struct {
	Scatter int          // n; one in n entities has the property __scatter__
	Indexes *indexes.Set // the composite indexes; a query that needs another one is refused; nil: none is refused
}

// Parse checks a query and returns it. For an aggregation query, aggregated has the properties that
// are summed or averaged.
func Parse(db model.Database, o Options, p *pb.PartitionId, q *pb.Query, aggregated ...string) (*Query, error) {
	partition, err := db.Partition(p)
	if err != nil {
		return nil, err
	}
	parsed := &Query{Namespace: partition.NamespaceId, Limit: -1, scatter: o.Scatter}
	switch {
	case len(q.GetKind()) > 1:
		return nil, model.Invalid("a query has one kind, this one has %d", len(q.Kind))
	case len(q.GetKind()) == 1 && (q.Kind[0].GetName() == "" || len(q.Kind[0].Name) > model.MaxName):
		return nil, model.Invalid("the kind of a query has 1 to %d bytes, this one has %d", model.MaxName,
			len(q.Kind[0].GetName()))
	case q.FindNearest != nil:
		return nil, unimplemented("find_nearest")
	case q.Offset < 0:
		return nil, model.Invalid("the offset of a query is negative: %d", q.Offset)
	}
	if len(q.Kind) == 1 {
		parsed.Kind = q.Kind[0].Name
	}
	parsed.Offset = int(q.Offset)
	if q.Limit != nil {
		if q.Limit.Value < 0 {
			return nil, model.Invalid("the limit of a query is negative: %d", q.Limit.Value)
		}
		parsed.Limit = int(q.Limit.Value)
	}
	var parts int
	if parsed.anyOf, parts, err = parseFilter(db, parsed.Namespace, q.Filter); err != nil {
		return nil, err
	}
	if err := checkParts(parts + len(q.Order)); err != nil {
		return nil, err
	}
	if names := parsed.unequal(); len(names) > maxUnequal {
		return nil, model.Invalid("The query contains %d distinct inequality fields: [%s]. A query may not have more "+
			"than %d distinct inequality fields.", len(names), strings.Join(names, ", "), maxUnequal)
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
	if err := parsed.chooseIndexes(o.Indexes); err != nil {
		return nil, err
	}
	parsed.named = parsed.namesRead()
	parsed.print = parsed.fingerprint()
	return parsed, parsed.parseCursors(q.StartCursor, q.EndCursor)
}

// parseProjection reads which properties a query returns. If there is only __key__, it is a
// keys-only query. Otherwise __key__ has no effect, because each result has its key.
func (q *Query) parseProjection(projection []*pb.Projection) error {
	for _, p := range projection {
		name := p.GetProperty().GetName()
		if err := model.CheckPropertyName(name); err != nil {
			return err
		}
		switch {
		case name == model.KeyProperty:
			q.KeysOnly = true
			continue
		case model.Reserved(name):
			return model.Invalid("a projection can't have the property %q", name)
		case slices.Contains(q.Projected, name):
			return model.Invalid("the projection has the property %q twice", name)
		}
		q.Projected = append(q.Projected, name)
	}
	if len(q.Projected) > 0 {
		q.KeysOnly = false
		slices.Sort(q.Projected)
	}
	return nil
}

// project makes the query return the properties to aggregate, like a projection. The values come
// from the property's index, where an array has an entry for each value.
func (q *Query) project(aggregated []string) error {
	switch {
	case len(aggregated) == 0:
		return nil
	case q.KeysOnly:
		return model.Invalid("properties can't be aggregated over a query that only returns keys")
	case len(q.Projected) == 0:
		q.Projected = aggregated
	}
	for _, name := range aggregated {
		if !slices.Contains(q.Projected, name) {
			return model.Invalid("the aggregated property %q is not in the projection of the query", name)
		}
	}
	q.aggregated = aggregated
	return nil
}

func (q *Query) parseOrders(orders []*pb.PropertyOrder) error {
	for _, o := range orders {
		name := o.GetProperty().GetName()
		if err := model.CheckPropertyName(name); err != nil {
			return err
		}
		switch {
		case name == ScatterProperty && (o.Direction == pb.PropertyOrder_DESCENDING || !alone(orders)):
			return unimplemented("an order by __scatter__ that descends or is one of several")
		case name != ScatterProperty && name != model.KeyProperty && model.Reserved(name):
			return model.Invalid("an order can't be by the property %s", name)
		case pb.PropertyOrder_Direction_name[int32(o.Direction)] == "":
			return model.Invalid("there is no direction %d of an order", o.Direction)
		case q.ordered(name):
			return model.Invalid("two orders are by the property %q", name)
		}
		q.orders = append(q.orders, store.Order{Property: name, Descending: o.Direction == pb.PropertyOrder_DESCENDING})
	}
	if q.ordered(ScatterProperty) {
		// the other orders have no effect: entities with equal values are in key order anyway
		q.orders = q.orders[:1]
	}
	return nil
}

// alone reports whether the first order is the only one, apart from an order by ascending keys
// after it.
func alone(orders []*pb.PropertyOrder) bool {
	rest := orders[1:]
	return len(rest) == 0 || len(rest) == 1 && rest[0].GetProperty().GetName() == model.KeyProperty &&
		rest[0].Direction != pb.PropertyOrder_DESCENDING
}

func (q *Query) ordered(property string) bool {
	return slices.ContainsFunc(q.orders, func(o store.Order) bool { return o.Property == property })
}

// parseDistinct moves the properties of distinct-on to the front of the orders.
func (q *Query) parseDistinct(on []*pb.PropertyReference) error {
	var names []string
	for _, p := range on {
		name := p.GetName()
		if err := model.CheckPropertyName(name); err != nil {
			return err
		}
		switch {
		case model.Reserved(name):
			return model.Invalid("results can't be distinct on the property %q", name)
		case slices.Contains(names, name):
			return model.Invalid("results are distinct on the property %q twice", name)
		default:
			names = append(names, name)
		}
	}
	for i, o := range q.orders {
		if i < len(names) && !slices.Contains(names, o.Property) {
			return model.Invalid("All group by properties must be ordered before any non group by properties.")
		}
	}
	explicit := min(len(names), len(q.orders))
	for _, name := range names {
		if !q.ordered(name) {
			q.orders = slices.Insert(q.orders, explicit, store.Order{Property: name})
			explicit++
		}
	}
	q.Distinct = len(names)
	return nil
}

// unequal returns the names of the properties with inequalities, sorted.
func (q *Query) unequal() []string {
	var names []string
	for _, c := range q.anyOf {
		for _, iv := range c.between {
			names = append(names, iv.property)
		}
		if c.ranged {
			names = append(names, model.KeyProperty)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// implyOrders adds the orders that a query implies. First come the properties of inequalities,
// sorted by name, or __key__ if only __key__ has an inequality. They get the direction of the last
// explicit order, as in Google's Firestore emulator. Then come the projected properties, because
// the index must contain their values.
func (q *Query) implyOrders() {
	descending := len(q.orders) > 0 && q.orders[len(q.orders)-1].Descending
	implied := slices.DeleteFunc(q.unequal(), q.ordered)
	if len(q.orders) > 0 || len(implied) > 1 {
		implied = slices.DeleteFunc(implied, func(name string) bool { return name == model.KeyProperty })
	}
	if !q.byScatter() {
		for _, name := range implied {
			q.orders = append(q.orders, store.Order{Property: name, Descending: descending})
		}
	}
	q.chosen = len(q.orders)
	for _, name := range q.Projected {
		if !q.ordered(name) {
			q.orders = append(q.orders, store.Order{Property: name, Descending: descending && q.aggregated != nil})
		}
	}
}

// check returns an error for a query that no index can serve.
func (q *Query) check() error {
	for _, c := range q.anyOf {
		for _, e := range c.equal {
			if q.aggregated == nil && slices.Contains(q.Projected, e.property) {
				return model.Invalid("Cannot use projection on a property with an equality filter.")
			}
			if slices.ContainsFunc(q.orders[:q.Distinct], func(o store.Order) bool {
				return o.Property == e.property
			}) {
				return model.Invalid("Cannot use group by on a property with an equality filter.")
			}
		}
		ranged := c.lo != "" || c.hi != "" || len(c.between) > 0
		if q.byScatter() && ranged {
			return model.Invalid("The first sort property must be the same as the property to which the inequality " +
				"filter is applied.")
		}
	}
	if q.byScatter() && q.aggregated != nil {
		return unimplemented("sums and averages in the order of __scatter__")
	}
	if q.Kind == "" {
		switch {
		case slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal)+len(c.between) > 0 }):
			return model.Invalid("kind is required for all filters except __key__ and ancestor")
		case q.aggregated == nil && len(q.Projected) > 0:
			return model.Invalid("kind is required for projections except __key__")
		case slices.ContainsFunc(q.orders, func(o store.Order) bool {
			return o.Property != model.KeyProperty || o.Descending
		}):
			return model.Invalid("kind is required for all orders except __key__ ascending")
		}
	}
	return nil
}

// chooseIndexes finds the indexes that serve the query, or returns an error if one is missing. The
// first index decides in which order the projected properties come.
func (q *Query) chooseIndexes(set *indexes.Set) error {
	if q.byScatter() || model.Reserved(q.Kind) {
		set = nil
	}
	for _, c := range q.anyOf {
		shape := indexes.Shape{Kind: q.Kind, Ancestor: c.ancestor != ""}
		seen := make(map[string]bool)
		for _, e := range c.equal {
			if !seen[e.property] {
				seen[e.property] = true
				shape.Equal = append(shape.Equal, e.property)
			}
		}
		var rest []int // the orders whose place the index decides
		for i, o := range q.orders {
			p := indexes.Property{Name: o.Property, Descending: o.Descending}
			switch {
			case seen[o.Property]:
			case i < q.chosen:
				shape.Orders = append(shape.Orders, p)
			default:
				shape.Rest, rest = append(shape.Rest, p), append(rest, i)
			}
		}
		used, missing := set.Serve(shape)
		if missing != nil {
			return status.Errorf(codes.FailedPrecondition, "no matching index found. recommended index is:\n%s",
				missing)
		}
		q.indexes = append(q.indexes, used...)
		tail := used[0].Properties
		for n, i := range rest {
			p := tail[len(tail)-len(rest)+n]
			q.orders[i] = store.Order{Property: p.Name, Descending: p.Descending}
		}
		q.chosen = len(q.orders) // the orders are now decided; the other conjunctions use the same
	}
	return nil
}

func (q *Query) byScatter() bool {
	return len(q.orders) == 1 && q.orders[0].Property == ScatterProperty
}
