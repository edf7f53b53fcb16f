package dsemu

import (
	"slices"
	"unicode/utf8"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A row is one result of a query.
type row struct {
	sortKey string // comparing them gives the order of the results; no two are the same
	group   int    // how much of the sort key names the group that the row is in
	version version
	values  map[string]*pb.Value // of a projection
}

// rows appends the rows that a version of a record is worth to the query,
// cursors aside: none if it is no result.
//
// An entity is one row. It sorts by the least of a property's values that the
// filter allows, or the greatest when descending. In a projection it is a row
// for each combination of the values that it is ordered by, as in an index.
func (q *query) rows(dst []row, r *record, v version) []row {
	if !q.holdsPath(r.path) {
		return dst
	}
	if q.byScatter() {
		value, ok := scatter(v.Key().Path, q.scatter)
		if !ok {
			return dst
		}
		if !slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal) == 0 || c.holds(v.Properties()) }) {
			return dst
		}
		return append(dst, row{sortKey: string(value[:]) + r.path, version: v})
	}
	properties := v.Properties()
	var satisfied []*conjunction
	for _, c := range q.anyOf {
		if c.holdsPath(r.path) && c.holds(properties) {
			satisfied = append(satisfied, c)
		}
	}
	if len(satisfied) == 0 {
		return dst
	}
	rows := []row{{version: v}}
	keyed := false
	for i, o := range q.orders {
		if i == q.distinct {
			for j := range rows {
				rows[j].group = len(rows[j].sortKey)
			}
		}
		if o.property == model.KeyProperty {
			keyed = true
			for j := range rows {
				rows[j].sortKey += directed(o, r.path)
			}
			continue
		}
		values := q.allowed(o, properties, satisfied)
		if len(values) == 0 {
			return dst // who lacks the property is no result
		}
		if len(q.projected) == 0 {
			values = values[:1]
		}
		rows = q.extend(rows, o, values)
	}
	for j := range rows {
		if q.distinct == len(q.orders) {
			rows[j].group = len(rows[j].sortKey)
		}
		if !keyed {
			rows[j].sortKey += r.path
		}
	}
	return append(dst, rows...)
}

// extend returns the combinations of rows with the values of the next order.
func (q *query) extend(rows []row, o order, values []collate.Entry) []row {
	all := make([]row, 0, len(rows)*len(values))
	for _, r := range rows {
		for _, value := range values {
			n := r
			n.sortKey += directed(o, value.Form)
			if slices.Contains(q.projected, o.property) {
				n.values = make(map[string]*pb.Value, len(r.values)+1)
				for name, v := range r.values {
					n.values[name] = v
				}
				n.values[o.property] = fromIndex(value.Value)
			}
			all = append(all, n)
		}
	}
	return all
}

// fromIndex returns a value as projections have it, which come from an index:
// marked as such, and as what it is indexed as, times as integers, and blobs that
// are texts as those.
func fromIndex(v *pb.Value) *pb.Value {
	result := &pb.Value{ValueType: v.ValueType, Meaning: model.ProjectionMeaning}
	if t := v.GetTimestampValue(); t != nil {
		result.ValueType = &pb.Value_IntegerValue{IntegerValue: t.AsTime().UnixMicro()}
	}
	if b, ok := v.ValueType.(*pb.Value_BlobValue); ok && utf8.Valid(b.BlobValue) {
		result.ValueType = &pb.Value_StringValue{StringValue: string(b.BlobValue)}
	}
	return result
}

// needsProperties reports whether rows depend on more than keys.
func (q *query) needsProperties() bool {
	return slices.ContainsFunc(q.orders, func(o order) bool { return o.property != model.KeyProperty }) ||
		slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal)+len(c.between) > 0 })
}

// holdsPath reports whether the filter allows an entity's key.
func (q *query) holdsPath(path string) bool {
	for _, c := range q.anyOf {
		if c.holdsPath(path) {
			return true
		}
	}
	return false
}

// allowed returns the values by which an entity is in an index that serves one
// of the conjunctions that it satisfies, in the direction of the order.
func (q *query) allowed(o order, properties map[string]*pb.Value, satisfied []*conjunction) []collate.Entry {
	var values []collate.Entry
	for _, value := range collate.Entries(properties, o.property) {
		if slices.ContainsFunc(satisfied, func(c *conjunction) bool { return c.allows(o.property, value.Form) }) {
			values = append(values, value)
		}
	}
	if len(values) < 2 {
		return values
	}
	slices.SortStableFunc(values, func(a, b collate.Entry) int {
		if (a.Form < b.Form) != o.descending {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(values, func(a, b collate.Entry) bool { return a.Form == b.Form })
}

// allows reports whether one of a property's values can be what satisfies the
// conjunction.
func (c *conjunction) allows(property, form string) bool {
	equal := false
	for _, e := range c.equal {
		if e.property == property {
			if e.form == form {
				return true
			}
			equal = true
		}
	}
	if equal {
		return false
	}
	for _, iv := range c.between {
		if iv.property == property {
			return iv.holds(form)
		}
	}
	return true
}

func (c *conjunction) holdsPath(path string) bool {
	return path >= c.lo && (c.hi == "" || path < c.hi) && !c.notKeys[path]
}

// holds reports whether properties satisfy the conjunction.
func (c *conjunction) holds(properties map[string]*pb.Value) bool {
	for _, e := range c.equal {
		if !slices.ContainsFunc(collate.Entries(properties, e.property), func(v collate.Entry) bool { return v.Form == e.form }) {
			return false
		}
	}
	for _, iv := range c.between {
		if !slices.ContainsFunc(collate.Entries(properties, iv.property), func(v collate.Entry) bool { return iv.holds(v.Form) }) {
			return false
		}
	}
	return true
}

// result returns the row as the protocol has it.
func (q *query) result(r row) *pb.EntityResult {
	result := r.version.result(q.keysOnly)
	if len(q.projected) > 0 {
		result.ProtoReflect().SetUnknown(nil)
		result.Entity = &pb.Entity{Key: r.version.Key(), Properties: r.values}
	}
	result.Cursor = q.cursor(r)
	return result
}
