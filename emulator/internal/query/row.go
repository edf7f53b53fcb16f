package query

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A Row is one result of a query.
type Row struct {
	SortKey string // a text that is different for each row; rows are sorted by it
	Group   int    // the length of the start of SortKey that rows of one group share (distinct-on)
	Version store.Version
	Values  map[string]*pb.Value // the projected values; nil: the row is a whole entity
}

// Rows appends to dst the rows that a version of a record has in the query. It ignores cursors. If
// the version does not satisfy the query, it has no rows. If sortKey is not empty, Rows appends
// only the row with this key.
//
// A whole entity is one row. If a property has several values, the row sorts by the least value
// that the filter allows, or by the greatest in descending order. In a projection, there is a row
// for each combination of the values by which it is ordered, as in an index.
func (q *Query) Rows(dst []Row, r *store.Record, v store.Version, sortKey string) []Row {
	if !q.holdsPath(r.Path) {
		return dst
	}
	if q.byScatter() {
		return q.scatterRows(dst, r, v)
	}
	properties := v.Some(q.reads)
	var satisfied []*conjunction
	for _, c := range q.anyOf {
		if c.holdsPath(r.Path) && c.holds(properties) {
			satisfied = append(satisfied, c)
		}
	}
	if len(satisfied) == 0 {
		return dst
	}
	rows := []Row{{Version: v}}
	keyed := false
	for i, o := range q.orders {
		if i == q.Distinct {
			for j := range rows {
				rows[j].Group = len(rows[j].SortKey)
			}
		}
		if o.Property == model.KeyProperty {
			keyed = true
			for j := range rows {
				rows[j].SortKey += store.Directed(o, r.Path)
			}
			continue
		}
		values := q.allowed(o, properties, satisfied)
		if len(values) == 0 {
			return dst // an entity without the property is no result
		}
		if len(q.Projected) == 0 {
			values = values[:1]
		}
		if rows = q.extend(rows, o, values, sortKey); len(rows) == 0 {
			return dst
		}
	}
	for j := range rows {
		if q.Distinct == len(q.orders) {
			rows[j].Group = len(rows[j].SortKey)
		}
		if !keyed {
			rows[j].SortKey += r.Path
		}
	}
	return append(dst, rows...)
}

// scatterRows does the same as Rows, for a query that is ordered by __scatter__.
func (q *Query) scatterRows(dst []Row, r *store.Record, v store.Version) []Row {
	value, ok := store.Scatter(v.Key().Path, q.scatter)
	if !ok || !slices.ContainsFunc(q.anyOf, func(c *conjunction) bool {
		return len(c.equal) == 0 || c.holds(v.Some(q.reads))
	}) {
		return dst
	}
	return append(dst, Row{SortKey: string(value[:]) + r.Path, Version: v})
}

// extend combines each row with each value of the next order. If sortKey is not empty, it returns
// only the combination that is a prefix of sortKey. There is at most one, because no form is a
// prefix of another.
func (q *Query) extend(rows []Row, o store.Order, values []collate.Entry, sortKey string) []Row {
	var all []Row
	for _, r := range rows {
		for _, value := range values {
			n := r
			n.SortKey += store.Directed(o, value.Form)
			if sortKey != "" && !strings.HasPrefix(sortKey, n.SortKey) {
				continue
			}
			if slices.Contains(q.Projected, o.Property) {
				n.Values = make(map[string]*pb.Value, len(r.Values)+1)
				maps.Copy(n.Values, r.Values)
				n.Values[o.Property] = fromIndex(value.Value)
			}
			all = append(all, n)
		}
	}
	return all
}

// fromIndex returns a value as projections return it: with the type in which an index stores it,
// and with a meaning that says so. A time is an integer, and a blob that is a text is a string.
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

// needsProperties reports whether rows depend on properties, and not only on keys.
func (q *Query) needsProperties() bool {
	return slices.ContainsFunc(q.orders, func(o store.Order) bool { return o.Property != model.KeyProperty }) ||
		slices.ContainsFunc(q.anyOf, func(c *conjunction) bool { return len(c.equal)+len(c.between) > 0 })
}

// reads reports whether rows depend on the property of this name, or on a property nested in it.
func (q *Query) reads(name []byte) bool {
	return q.named.Needs(name)
}

// namesRead returns the names of the properties on which rows depend.
func (q *Query) namesRead() store.Names {
	var names []string
	for _, o := range q.orders {
		names = append(names, o.Property)
	}
	for _, c := range q.anyOf {
		for _, e := range c.equal {
			names = append(names, e.property)
		}
		for _, iv := range c.between {
			names = append(names, iv.property)
		}
	}
	return store.NamesOf(names)
}

// holdsPath reports whether the filter allows an entity with this path of its key.
func (q *Query) holdsPath(path string) bool {
	for _, c := range q.anyOf {
		if c.holdsPath(path) {
			return true
		}
	}
	return false
}

// allowed returns the values by which an entity sorts in an order, in the order's direction. These
// are its values in the index that serves a conjunction which the entity satisfies.
func (q *Query) allowed(o store.Order, properties map[string]*pb.Value, satisfied []*conjunction) []collate.Entry {
	var values []collate.Entry
	for _, value := range collate.Entries(properties, o.Property) {
		if slices.ContainsFunc(satisfied, func(c *conjunction) bool { return c.allows(o.Property, value.Form) }) {
			values = append(values, value)
		}
	}
	if len(values) < 2 {
		return values
	}
	slices.SortStableFunc(values, func(a, b collate.Entry) int {
		if (a.Form < b.Form) != o.Descending {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(values, func(a, b collate.Entry) bool { return a.Form == b.Form })
}

// allows reports whether a value of a property satisfies the conjunction's conditions on this
// property. The value is given in ordered form.
func (c *conjunction) allows(property, form string) bool {
	if w, ok := c.wants(property); ok {
		_, found := slices.BinarySearch(w.forms, form)
		return found
	}
	iv := c.within(property)
	return iv == nil || iv.holds(form)
}

func (c *conjunction) holdsPath(path string) bool {
	return path >= c.lo && (c.hi == "" || path < c.hi) && !c.notKeys[path]
}

// holds reports whether an entity with these properties satisfies the conjunction.
func (c *conjunction) holds(properties map[string]*pb.Value) bool {
	if c.never {
		return false
	}
	for _, w := range c.wanted {
		if !w.all(collate.Entries(properties, w.property)) {
			return false
		}
	}
	for _, iv := range c.between {
		if !slices.ContainsFunc(collate.Entries(properties, iv.property), func(v collate.Entry) bool {
			return iv.holds(v.Form)
		}) {
			return false
		}
	}
	return true
}

// Result returns the row in the form of the protocol.
func (q *Query) Result(r Row) *pb.EntityResult {
	result := r.Version.Result(q.KeysOnly)
	if len(q.Projected) > 0 {
		result.ProtoReflect().SetUnknown(nil)
		result.Entity = &pb.Entity{Key: r.Version.Key(), Properties: r.Values}
	}
	result.Cursor = q.Cursor(r)
	return result
}

// Size estimates the size of a row's result in bytes.
func (q *Query) Size(r Row) int {
	if q.KeysOnly {
		return len(r.Version.Wire(true)) + len(r.SortKey) + ResultOverhead
	}
	return len(r.Version.Wire(false)) + len(r.SortKey) + ResultOverhead
}

// ResultType returns the type of all results.
func (q *Query) ResultType() pb.EntityResult_ResultType {
	switch {
	case q.KeysOnly:
		return pb.EntityResult_KEY_ONLY
	case len(q.Projected) > 0:
		return pb.EntityResult_PROJECTION
	}
	return pb.EntityResult_FULL
}
