package dsemu

import (
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/indexes"
)

const keyProperty = "__key__"

// A query is a checked request: all that a scan needs, in ordered forms.
//
// Its results are rows, see [query.rows]: one for each entity that satisfies one
// of the conjunctions, or, for a projection, one for each combination of values.
type query struct {
	namespace  string
	kind       string // empty: entities of all kinds
	keysOnly   bool
	projected  []string // by name; empty: whole entities
	distinct   int      // how many of the orders come first and make a group, of which the first row is a result
	anyOf      []*conjunction
	orders     []order // explicit, then those that inequalities and projection imply
	after      string  // sort key of the start cursor
	afterGroup string
	until      string // sort key of the end cursor
	bounded    bool   // there is one
	offset     int    // rows to skip
	limit      int    // negative: none
	scatter    int    // proportion of the database
	print      uint32 // tells the query from others, in its cursors
}

type order struct {
	property   string
	descending bool
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "the embedded Datastore does not serve %s", what)
}

// parse checks a query.
func (db *database) parse(p *pb.PartitionId, q *pb.Query) (*query, error) {
	partition, err := db.checkPartition(p)
	if err != nil {
		return nil, err
	}
	parsed := &query{namespace: partition.NamespaceId, limit: -1, scatter: db.opts.Scatter}
	switch {
	case len(q.GetKind()) > 1:
		return nil, invalid("a query has one kind, this one has %d", len(q.Kind))
	case len(q.GetKind()) == 1 && q.Kind[0].GetName() == "":
		return nil, invalid("the kind of a query is empty")
	case q.FindNearest != nil:
		return nil, unimplemented("find_nearest")
	case q.Offset < 0:
		return nil, invalid("the offset of a query is negative: %d", q.Offset)
	}
	if len(q.Kind) == 1 {
		parsed.kind = q.Kind[0].Name
	}
	parsed.offset = int(q.Offset)
	if q.Limit != nil {
		if q.Limit.Value < 0 {
			return nil, invalid("the limit of a query is negative: %d", q.Limit.Value)
		}
		parsed.limit = int(q.Limit.Value)
	}
	if parsed.anyOf, err = db.parseFilter(parsed.namespace, q.Filter); err != nil {
		return nil, err
	}
	if err := parsed.parseProjection(q.Projection); err != nil {
		return nil, err
	}
	if err := parsed.parseOrders(q.Order); err != nil {
		return nil, err
	}
	if err := parsed.parseDistinct(q.DistinctOn); err != nil {
		return nil, err
	}
	parsed.implyOrders()
	if err := parsed.check(); err != nil {
		return nil, err
	}
	if err := parsed.checkIndexes(db.opts.Indexes, nil); err != nil {
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
		case name == keyProperty:
			q.keysOnly = true
			continue
		case name == "" || reserved(name):
			return invalid("a projection can't have the property %q", name)
		case slices.Contains(q.projected, name):
			return invalid("the projection has the property %q twice", name)
		}
		q.projected = append(q.projected, name)
	}
	if len(q.projected) > 0 {
		q.keysOnly = false
		slices.Sort(q.projected)
	}
	return nil
}

func (q *query) parseOrders(orders []*pb.PropertyOrder) error {
	for _, o := range orders {
		name := o.GetProperty().GetName()
		switch {
		case name == "":
			return invalid("an order names no property")
		case name == scatterProperty && (len(orders) > 1 || o.Direction == pb.PropertyOrder_DESCENDING):
			return unimplemented("an order by __scatter__ that descends or is one of several")
		case name != scatterProperty && name != keyProperty && reserved(name):
			return invalid("an order can't be by the property %s", name)
		case q.ordered(name):
			return invalid("two orders are by the property %q", name)
		}
		q.orders = append(q.orders, order{name, o.Direction == pb.PropertyOrder_DESCENDING})
	}
	return nil
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
		case name == "" || name != keyProperty && reserved(name):
			return invalid("results can't be distinct on the property %q", name)
		case !slices.Contains(names, name):
			names = append(names, name)
		}
	}
	for i, o := range q.orders {
		if i < len(names) && !slices.Contains(names, o.property) {
			return invalid("All group by properties must be ordered before any non group by properties.")
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

// implyOrders adds the orders that follow from the rest: of the properties of
// inequalities, or of __key__ if that has the only one, by name and in the last order's direction, as Google's Firestore
// emulator has it; and of projected properties, whose values an index has to
// hold.
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
		implied = []string{keyProperty}
	}
	if !q.byScatter() {
		for _, name := range implied {
			q.orders = append(q.orders, order{name, descending})
		}
	}
	for _, name := range q.projected {
		if !q.ordered(name) {
			q.orders = append(q.orders, order{property: name})
		}
	}
}

// check refuses combinations that no index can serve.
func (q *query) check() error {
	for _, c := range q.anyOf {
		for _, e := range c.equal {
			if slices.Contains(q.projected, e.property) {
				return invalid("Cannot use projection on a property with an equality filter.")
			}
		}
		ranged := c.lo != "" || c.hi != "" || len(c.between) > 0
		if q.byScatter() && ranged {
			return invalid("The first sort property must be the same as the property to which the inequality filter is applied.")
		}
	}
	if q.kind == "" {
		properties := slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal)+len(c.between) > 0 })
		if properties || slices.ContainsFunc(q.orders, func(o order) bool { return o.property != keyProperty }) {
			return invalid("kind is required for all orders and filters except __key__ ascending and ancestor")
		}
	}
	return nil
}

// checkIndexes refuses a query that needs an index which is not there. What is
// added up has to be in the index, too.
func (q *query) checkIndexes(set *indexes.Set, tallies []*tally) error {
	if q.byScatter() || reserved(q.kind) {
		return nil
	}
	for _, c := range q.anyOf {
		shape := indexes.Shape{Kind: q.kind, Ancestor: c.ancestor != ""}
		for _, e := range c.equal {
			if !slices.Contains(shape.Equal, e.property) {
				shape.Equal = append(shape.Equal, e.property)
			}
		}
		for _, o := range q.orders {
			if !slices.Contains(shape.Equal, o.property) {
				shape.Orders = append(shape.Orders, indexes.Property{Name: o.property, Descending: o.descending})
			}
		}
		for _, t := range tallies {
			inShape := slices.ContainsFunc(shape.Orders, func(p indexes.Property) bool { return p.Name == t.property })
			if t.property != "" && !inShape && !slices.Contains(shape.Equal, t.property) {
				shape.Orders = append(shape.Orders, indexes.Property{Name: t.property})
			}
		}
		if missing, ok := set.Serve(shape); !ok {
			return status.Errorf(codes.FailedPrecondition, "no matching index found. recommended index is:\n%s", missing)
		}
	}
	return nil
}

func (q *query) byScatter() bool {
	return len(q.orders) == 1 && q.orders[0].property == scatterProperty
}
