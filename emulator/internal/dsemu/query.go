package dsemu

import (
	"hash/fnv"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const keyProperty = "__key__"

// A query is a checked request: all that a scan needs, in ordered forms.
type query struct {
	namespace, kind string
	keysOnly        bool
	scatter         int // proportion of the database

	lo, hi  string      // paths: lo <= path, and path < hi unless hi is empty
	equal   []condition // each holds for one of the property's values
	between []*interval // by property: one value satisfies all of its bounds
	orders  []order     // explicit, or implied by an inequality
	after   string      // sort key of the start cursor
	until   string      // sort key of the end cursor
	offset  int         // results to skip
	limit   int         // negative: none
}

type condition struct {
	property, form string
}

type order struct {
	property   string
	descending bool
}

// An interval is what the inequalities on one property ask for.
type interval struct {
	property string
	bounds   []bound
}

type bound struct {
	op   pb.PropertyFilter_Operator
	form string
}

func (b bound) holds(form string) bool {
	switch b.op {
	case pb.PropertyFilter_LESS_THAN:
		return form < b.form
	case pb.PropertyFilter_LESS_THAN_OR_EQUAL:
		return form <= b.form
	case pb.PropertyFilter_GREATER_THAN:
		return form > b.form
	default:
		return form >= b.form
	}
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "the embedded Datastore does not serve %s yet", what)
}

// parse checks a query.
func (db *database) parse(p *pb.PartitionId, q *pb.Query) (*query, error) {
	partition, err := db.checkPartition(p)
	if err != nil {
		return nil, err
	}
	parsed := &query{namespace: partition.NamespaceId, limit: -1, scatter: db.opts.Scatter}
	switch {
	case len(q.GetKind()) == 0:
		return nil, unimplemented("queries without a kind")
	case len(q.Kind) > 1:
		return nil, invalid("a query has one kind, this one has %d", len(q.Kind))
	case q.Kind[0].Name == "":
		return nil, invalid("the kind of a query is empty")
	case reserved(q.Kind[0].Name):
		return nil, unimplemented("queries of the kind " + q.Kind[0].Name)
	case len(q.DistinctOn) > 0:
		return nil, unimplemented("distinct_on")
	case q.FindNearest != nil:
		return nil, unimplemented("find_nearest")
	case q.Offset < 0:
		return nil, invalid("the offset of a query is negative: %d", q.Offset)
	}
	parsed.kind = q.Kind[0].Name
	parsed.offset = int(q.Offset)
	if q.Limit != nil {
		if q.Limit.Value < 0 {
			return nil, invalid("the limit of a query is negative: %d", q.Limit.Value)
		}
		parsed.limit = int(q.Limit.Value)
	}
	for _, projection := range q.Projection {
		if projection.GetProperty().GetName() != keyProperty {
			return nil, unimplemented("projections")
		}
		parsed.keysOnly = true
	}
	if q.Filter != nil {
		if err := db.parseFilter(parsed, q.Filter); err != nil {
			return nil, err
		}
	}
	if err := parsed.parseOrders(q.Order); err != nil {
		return nil, err
	}
	return parsed, parsed.parseCursors(q.StartCursor, q.EndCursor)
}

func (db *database) parseFilter(q *query, f *pb.Filter) error {
	if composite := f.GetCompositeFilter(); composite != nil {
		if composite.Op != pb.CompositeFilter_AND {
			return unimplemented("composite filters other than AND")
		}
		if len(composite.Filters) == 0 {
			return invalid("a composite filter has no filters")
		}
		for _, sub := range composite.Filters {
			if err := db.parseFilter(q, sub); err != nil {
				return err
			}
		}
		return nil
	}
	property := f.GetPropertyFilter().GetProperty().GetName()
	value := f.GetPropertyFilter().GetValue()
	op := f.GetPropertyFilter().GetOp()
	switch {
	case property == "":
		return invalid("a filter names no property")
	case property == keyProperty:
		return db.parseKeyFilter(q, op, value)
	case reserved(property):
		return invalid("a filter can't be on the property %s", property)
	case value.GetArrayValue() != nil || value.GetEntityValue() != nil || value.GetValueType() == nil:
		return invalid("the filter on the property %q has no value, an array or an entity", property)
	}
	form := string(appendValue(nil, value))
	switch op {
	case pb.PropertyFilter_EQUAL:
		q.equal = append(q.equal, condition{property, form})
	case pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_LESS_THAN_OR_EQUAL,
		pb.PropertyFilter_GREATER_THAN, pb.PropertyFilter_GREATER_THAN_OR_EQUAL:
		i := slices.IndexFunc(q.between, func(iv *interval) bool { return iv.property == property })
		if i < 0 {
			i = len(q.between)
			q.between = append(q.between, &interval{property: property})
		}
		q.between[i].bounds = append(q.between[i].bounds, bound{op, form})
	default:
		return unimplemented("the filter operator " + op.String())
	}
	return nil
}

func (db *database) parseKeyFilter(q *query, op pb.PropertyFilter_Operator, value *pb.Value) error {
	if value.GetKeyValue() == nil {
		return invalid("__key__ filter value must be a Key")
	}
	key, err := db.storedKey(value.GetKeyValue())
	if err != nil {
		return err
	}
	if key.namespace != q.namespace {
		return invalid("__key__ filter namespace is %q but query namespace is %q", key.namespace, q.namespace)
	}
	// A path is never a prefix of another: the least string above it is itself
	// with a zero byte.
	lo, hi := "", ""
	switch op {
	case pb.PropertyFilter_EQUAL:
		lo, hi = key.path, key.path+"\x00"
	case pb.PropertyFilter_LESS_THAN:
		hi = key.path
	case pb.PropertyFilter_LESS_THAN_OR_EQUAL:
		hi = key.path + "\x00"
	case pb.PropertyFilter_GREATER_THAN:
		lo = key.path + "\x00"
	case pb.PropertyFilter_GREATER_THAN_OR_EQUAL:
		lo = key.path
	case pb.PropertyFilter_HAS_ANCESTOR:
		lo = strings.TrimSuffix(key.path, string(pathEnd))
		hi = lo + string(pathElement+1)
	default:
		return unimplemented("the filter operator " + op.String() + " on __key__")
	}
	q.lo = max(q.lo, lo)
	if hi != "" && (q.hi == "" || hi < q.hi) {
		q.hi = hi
	}
	return nil
}

func (q *query) parseOrders(orders []*pb.PropertyOrder) error {
	for _, o := range orders {
		name := o.GetProperty().GetName()
		if name == "" {
			return invalid("an order names no property")
		}
		if name == scatterProperty && (len(orders) > 1 || o.Direction == pb.PropertyOrder_DESCENDING) {
			return unimplemented("an order by __scatter__ that descends or is one of several")
		}
		if name != scatterProperty && name != keyProperty && reserved(name) {
			return invalid("an order can't be by the property %s", name)
		}
		q.orders = append(q.orders, order{name, o.Direction == pb.PropertyOrder_DESCENDING})
		if name == keyProperty {
			break // keys are unique: what follows says nothing
		}
	}
	if len(q.orders) == 0 && len(q.between) > 0 {
		q.orders = []order{{property: q.between[0].property}}
	}
	if q.byScatter() && (q.lo != "" || q.hi != "" || len(q.between) > 0) {
		return invalid("The first sort property must be the same as the property to which the inequality filter is applied.")
	}
	return nil
}

func (q *query) byScatter() bool {
	return len(q.orders) == 1 && q.orders[0].property == scatterProperty
}

// byKey reports whether the results are in the order of their keys, and which.
func (q *query) byKey() (ordered, descending bool) {
	if len(q.orders) == 0 {
		return true, false
	}
	return q.orders[0].property == keyProperty, q.orders[0].descending
}

// match reports whether a version of a record is among the query's results,
// cursors aside, and its sort key: comparing sort keys gives the order of the
// results.
func (q *query) match(r *record, v version) (sortKey string, ok bool) {
	if r.path < q.lo || q.hi != "" && r.path >= q.hi {
		return "", false
	}
	var properties map[string]*pb.Value
	if len(q.equal) > 0 || len(q.between) > 0 || !q.byScatter() && len(q.orders) > 0 {
		properties = v.properties()
	}
	for _, c := range q.equal {
		if !slices.ContainsFunc(indexed(properties[c.property]), func(form []byte) bool { return string(form) == c.form }) {
			return "", false
		}
	}
	for _, iv := range q.between {
		if !slices.ContainsFunc(indexed(properties[iv.property]), func(form []byte) bool { return iv.holds(string(form)) }) {
			return "", false
		}
	}
	return q.sortKey(r, v, properties)
}

func (iv *interval) holds(form string) bool {
	for _, b := range iv.bounds {
		if !b.holds(form) {
			return false
		}
	}
	return true
}

// sortKey is the ordered form of what the query orders by, then of the key. An
// entity that lacks one of the properties is not a result.
func (q *query) sortKey(r *record, v version, properties map[string]*pb.Value) (string, bool) {
	if len(q.orders) == 0 {
		return r.path, true
	}
	var key []byte
	for _, o := range q.orders {
		from := len(key)
		switch o.property {
		case keyProperty:
			key = append(key, r.path...)
		case scatterProperty:
			value, ok := scatter(v.key().Path, q.scatter)
			if !ok {
				return "", false
			}
			key = append(key, value[:]...)
		default:
			form, ok := q.orderForm(o, properties[o.property])
			if !ok {
				return "", false
			}
			key = append(key, form...)
		}
		if o.descending {
			invert(key, from)
		}
		if o.property == keyProperty {
			return string(key), true
		}
	}
	return string(append(key, r.path...)), true
}

// orderForm returns the value by which an entity sorts: the least of its values
// that the query's inequalities allow, or the greatest when descending.
func (q *query) orderForm(o order, v *pb.Value) (form string, ok bool) {
	i := slices.IndexFunc(q.between, func(iv *interval) bool { return iv.property == o.property })
	for _, f := range indexed(v) {
		candidate := string(f)
		if i >= 0 && !q.between[i].holds(candidate) {
			continue
		}
		if !ok || o.descending == (candidate > form) {
			form, ok = candidate, true
		}
	}
	return form, ok
}

// A cursor is the position after a result: a byte for the form's version, four
// that tell the query's kind and order, and the result's sort key. It stays
// valid whatever is written later.
const cursorVersion = 1

func (q *query) fingerprint() uint32 {
	h := fnv.New32a()
	h.Write([]byte(q.kind))
	for _, o := range q.orders {
		h.Write([]byte{0})
		h.Write([]byte(o.property))
		if o.descending {
			h.Write([]byte{1})
		}
	}
	return h.Sum32()
}

func (q *query) cursor(sortKey string) []byte {
	f := q.fingerprint()
	return append([]byte{cursorVersion, byte(f >> 24), byte(f >> 16), byte(f >> 8), byte(f)}, sortKey...)
}

func (q *query) parseCursors(start, end []byte) error {
	for _, c := range []struct {
		name  string
		bytes []byte
		to    *string
	}{{"start_cursor", start, &q.after}, {"end_cursor", end, &q.until}} {
		if len(c.bytes) == 0 {
			continue
		}
		if len(c.bytes) < 6 || string(c.bytes[:5]) != string(q.cursor("")) {
			return invalid("the %s is not one of this query", c.name)
		}
		*c.to = string(c.bytes[5:])
	}
	return nil
}
