package main

import (
	"encoding/binary"

	"math"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const keyProperty = "__key__"

// A sort is the order in which a query returns its results. Results that are equal in all of its
// orders are sorted by ID.
type sort struct {
	homes    []*database // the store's databases, which do not matter when keys are compared
	orders   []*pb.PropertyOrder
	distinct int // number of orders, from the first on, in whose values results must differ (distinct on)
	ranges   map[string][]*pb.PropertyFilter
	free     map[string]bool // properties with conditions inside OR, IN and similar operators
	given    map[string]bool // properties whose value a condition determines
}

// sortOf returns the order in which a database returns a query's results. These are the query's
// orders, followed by those that Datastore adds for distinct results, inequalities and projections.
func sortOf(q *pb.Query, homes []*database) *sort {
	s := &sort{homes: homes, orders: slices.Clone(q.Order), ranges: make(map[string][]*pb.PropertyFilter),
		free:  make(map[string]bool),
		given: make(map[string]bool)}
	has := func(name string) bool {
		return slices.ContainsFunc(s.orders, func(o *pb.PropertyOrder) bool { return o.Property.GetName() == name })
	}
	explicit := 0
	for _, p := range q.DistinctOn {
		if !has(p.Name) {
			s.orders = slices.Insert(s.orders, min(len(q.DistinctOn), len(q.Order))+explicit,
				&pb.PropertyOrder{Property: p})
			explicit++
		}
	}
	s.distinct = len(q.DistinctOn)
	direction := pb.PropertyOrder_ASCENDING
	if n := len(s.orders); n > 0 {
		direction = s.orders[n-1].Direction
	}
	s.conditions(q.Filter, true)
	implied := unequal(q.Filter)
	if i := slices.Index(implied, keyProperty); i >= 0 && (len(implied) > 1 || len(s.orders) > 0) {
		implied = slices.Delete(implied, i, i+1) // Datastore adds the order by __key__ only if it is the only one
	}
	for _, name := range implied {
		if !has(name) {
			s.orders = append(s.orders, &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name},
				Direction: direction})
		}
	}
	for _, name := range projected(q) {
		if !has(name) {
			s.orders = append(s.orders, &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name}})
		}
	}
	return s
}

// conditions records the conditions in a filter that decide by which value a comment is sorted, if
// a property has several. The caller sets all if every result must satisfy the filter f. It is not
// set for a part of an OR.
func (s *sort) conditions(f *pb.Filter, all bool) {
	if c := f.GetCompositeFilter(); c != nil {
		for _, part := range c.Filters {
			s.conditions(part, all && c.Op == pb.CompositeFilter_AND)
		}
	}
	p := f.GetPropertyFilter()
	if p == nil {
		return
	}
	name := p.Property.GetName()
	if p.Op == pb.PropertyFilter_EQUAL || p.Op == pb.PropertyFilter_IN {
		s.given[name] = true
	}
	if _, one := compares[p.Op]; all && one {
		s.ranges[name] = append(s.ranges[name], p)
	} else {
		s.free[name] = true
	}
}

// compares has a function for each operator. It gets the result of a comparison, and reports
// whether the condition holds.
var compares = map[pb.PropertyFilter_Operator]func(c int) bool{
	pb.PropertyFilter_EQUAL:                 func(c int) bool { return c == 0 },
	pb.PropertyFilter_LESS_THAN:             func(c int) bool { return c < 0 },
	pb.PropertyFilter_LESS_THAN_OR_EQUAL:    func(c int) bool { return c <= 0 },
	pb.PropertyFilter_GREATER_THAN:          func(c int) bool { return c > 0 },
	pb.PropertyFilter_GREATER_THAN_OR_EQUAL: func(c int) bool { return c >= 0 },
}

// unequal returns the properties with inequalities in a filter, sorted by name.
func unequal(f *pb.Filter) (names []string) {
	for _, part := range f.GetCompositeFilter().GetFilters() {
		names = append(names, unequal(part)...)
	}
	if p := f.GetPropertyFilter(); p != nil {
		switch p.Op {
		case pb.PropertyFilter_EQUAL, pb.PropertyFilter_IN, pb.PropertyFilter_HAS_ANCESTOR:
		default:
			names = append(names, p.Property.GetName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// projected returns the properties in a query's projection, sorted by name. The result is empty if
// the query returns keys or whole comments.
func projected(q *pb.Query) (names []string) {
	for _, p := range q.Projection {
		if name := p.GetProperty().GetName(); name != keyProperty {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// keysOnly reports whether a query returns only keys.
func keysOnly(q *pb.Query) bool { return len(q.Projection) > 0 && len(projected(q)) == 0 }

// A place is the position of a result in the order of a query: a text that sorts in the same way as
// the results.
type place struct {
	form  string
	group int // length of the prefix of form in which results must differ; 0: results need not differ
}

// beside reports whether a result at p must be left out when a result at other was returned before
// it. This is so if p does not come after other in the order, or if both have the same values where
// results must differ.
func (p place) beside(other place) bool {
	return p.form <= other.form || p.group > 0 && p.form[:p.group] == other.form[:min(p.group, len(other.form))]
}

// place returns the position of a result in the order.
func (s *sort) place(e *pb.Entity) (place, error) {
	var p place
	keyed := false
	id := binary.BigEndian.AppendUint64(nil, uint64(clientKey(e.Key).ID))
	for i, o := range s.orders {
		form := string(id)
		if o.Property.GetName() == keyProperty {
			keyed = true
		} else {
			var err error
			if form, err = s.form(e, o); err != nil {
				return p, err
			}
		}
		if o.Direction == pb.PropertyOrder_DESCENDING {
			form = inverted(form)
		}
		p.form += form
		if i+1 == s.distinct {
			p.group = len(p.form)
		}
	}
	if !keyed {
		p.form += string(id)
	}
	return p, nil
}

// form returns the ordered form of the value by which a comment is sorted in one order. If the
// property has several values, this is the first one that satisfies the conditions.
func (s *sort) form(e *pb.Entity, o *pb.PropertyOrder) (string, error) {
	name := o.Property.GetName()
	v, err := valueOf(e, name)
	if err != nil {
		return "", err
	}
	if v == nil {
		return "", nil // in a projection, a property is missing if a condition determines its value
	}
	list, several := v.ValueType.(*pb.Value_ArrayValue)
	if !several {
		return s.ordered(v), nil
	}
	if s.free[name] && len(list.ArrayValue.GetValues()) > 1 {
		return "", status.Errorf(codes.InvalidArgument,
			"%v has several values of %s: comments of several shards can't be "+
				"ordered by it "+
				"when a condition on it has OR, IN, NOT IN or !=", clientKey(e.Key), name)
	}
	var forms []string
	for _, v := range list.ArrayValue.GetValues() {
		if !v.ExcludeFromIndexes && s.allows(name, s.ordered(v)) {
			forms = append(forms, s.ordered(v))
		}
	}
	slices.Sort(forms)
	switch {
	case len(forms) == 0:
		return "", nil
	case o.Direction == pb.PropertyOrder_DESCENDING:
		return forms[len(forms)-1], nil
	}
	return forms[0], nil
}

// allows reports whether a property may have the value with the given ordered form, according to
// the query's conditions.
func (s *sort) allows(name, form string) bool {
	for _, p := range s.ranges[name] {
		if !compares[p.Op](strings.Compare(form, s.ordered(p.Value))) {
			return false
		}
	}
	return true
}

// valueOf returns the value of a property of a comment. A name with dots leads to a nested
// property.
func valueOf(e *pb.Entity, name string) (*pb.Value, error) {
	if v := e.GetProperties()[name]; v != nil {
		return v, nil
	}
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		switch outer := e.GetProperties()[name[:i]].GetValueType().(type) {
		case *pb.Value_EntityValue:
			return valueOf(outer.EntityValue, name[i+1:])
		case *pb.Value_ArrayValue:
			return nil, status.Errorf(codes.InvalidArgument,
				"comments of several shards can't be ordered by %s: %s has "+
					"several values",
				name, name[:i])
		}
	}
	return nil, nil
}

// ordered returns the ordered form of a value: bytes whose order is Datastore's order of values,
// first by type. Times are integers in it, and texts are bytes. No such form is a prefix of
// another.
func (s *sort) ordered(v *pb.Value) string {
	switch v := v.GetValueType().(type) {
	case *pb.Value_IntegerValue:
		return "\x01" + orderedInteger(v.IntegerValue)
	case *pb.Value_TimestampValue:
		return "\x01" + orderedInteger(v.TimestampValue.AsTime().UnixMicro())
	case *pb.Value_BooleanValue:
		if v.BooleanValue {
			return "\x02\x01"
		}
		return "\x02\x00"
	case *pb.Value_StringValue:
		return "\x03" + orderedText(v.StringValue)
	case *pb.Value_BlobValue:
		return "\x03" + orderedText(string(v.BlobValue))
	case *pb.Value_DoubleValue:
		return "\x04" + orderedDouble(v.DoubleValue)
	case *pb.Value_GeoPointValue:
		return "\x05" + orderedDouble(v.GeoPointValue.GetLatitude()) + orderedDouble(v.GeoPointValue.GetLongitude())
	case *pb.Value_KeyValue:
		of := v.KeyValue.GetPartitionId()
		project, name := of.GetProjectId(), of.GetDatabaseId()
		if slices.ContainsFunc(s.homes, func(d *database) bool { return d.project == project && d.name == name }) {
			project, name = "", ""
		}
		form := "\x06" + orderedText(project) + orderedText(name) + orderedText(of.GetNamespaceId())
		for _, el := range v.KeyValue.GetPath() {
			form += "\x01" + orderedText(el.GetKind())
			if name, ok := el.GetIdType().(*pb.Key_PathElement_Name); ok {
				form += "\x02" + orderedText(name.Name)
			} else {
				form += "\x01" + orderedInteger(el.GetId())
			}
		}
		return form + "\x00"
	case *pb.Value_EntityValue:
		return "\x07"
	}
	return "\x00"
}

func orderedInteger(n int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(n)^1<<63))
}

// orderedText returns the ordered form of a text. Zeros in the text are escaped, so the end mark is
// less than every byte of a text.
func orderedText(s string) string { return strings.ReplaceAll(s, "\x00", "\x00\xff") + "\x00\x01" }

func orderedDouble(f float64) string {
	bits := math.Float64bits(f)
	switch {
	case f != f:
		bits = math.MaxUint64
	case bits>>63 == 1:
		bits = ^bits
	default:
		bits |= 1 << 63
	}
	return string(binary.BigEndian.AppendUint64(nil, bits))
}

func inverted(form string) string {
	b := []byte(form)
	for i := range b {
		b[i] = ^b[i]
	}
	return string(b)
}
