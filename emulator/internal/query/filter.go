package query

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A conjunction is a set of conditions that an entity must satisfy together. A filter becomes
// several conjunctions. An entity passes the filter if it satisfies at least one of them.
type conjunction struct {
	lo, hi   string // bounds of the key's path: lo <= path < hi; an empty hi is no bound
	notKeys  map[string]bool
	ranged   bool        // whether the filter has an inequality on __key__
	ancestor string      // the ordered form of the ancestor's path, without its end; empty: no ancestor
	equal    []condition // equalities; each must hold for at least one of the property's values
	between  []*interval // inequalities, one interval for each property; one value must satisfy all of them
	never    bool        // whether no entity can satisfy the conjunction

	wanted    []wanted    // the equalities, grouped by property
	indexed   []condition // the equalities whose values are in the index that serves the conjunction
	ancestral bool        // whether that index contains the paths of ancestors, too
}

// A wanted has the values that a property must have, because of equalities on it. They are in
// ordered form (package collate), and sorted.
type wanted struct {
	property string
	forms    []string
}

// all reports whether a property with these values satisfies every equality on it.
func (w wanted) all(values []collate.Entry) bool {
	switch {
	case len(w.forms) == 1:
		return slices.ContainsFunc(values, func(v collate.Entry) bool { return v.Form == w.forms[0] })
	case len(values) < len(w.forms):
		return false
	}
	seen, n := make([]bool, len(w.forms)), 0
	for _, v := range values {
		if i, ok := slices.BinarySearch(w.forms, v.Form); ok && !seen[i] {
			seen[i] = true
			n++
		}
	}
	return n == len(w.forms)
}

// wants returns the values that equalities require of a property. It returns false if the property
// has no equality.
func (c *conjunction) wants(property string) (wanted, bool) {
	byName := func(w wanted, p string) int { return strings.Compare(w.property, p) }
	i, ok := slices.BinarySearchFunc(c.wanted, property, byName)
	if !ok {
		return wanted{}, false
	}
	return c.wanted[i], true
}

// within returns the interval in which the inequalities require the property's value to be. It
// returns nil if there are no inequalities.
func (c *conjunction) within(property string) *interval {
	byName := func(iv *interval, p string) int { return strings.Compare(iv.property, p) }
	i, ok := slices.BinarySearchFunc(c.between, property, byName)
	if !ok {
		return nil
	}
	return c.between[i]
}

type condition struct {
	property, form string
}

// An interval combines all inequalities on one property. The ordered form of a value must be at
// least lo, below hi, and none of the excluded forms. An empty hi is no bound.
type interval struct {
	property string
	lo, hi   string
	not      map[string]bool
}

func (iv *interval) holds(form string) bool {
	return form >= iv.lo && (iv.hi == "" || form < iv.hi) && !iv.not[form]
}

// behind returns a string that is above every string that starts with a form, and below every
// greater form. In an index, the byte after a form is never 0xff. It starts the next form, a path,
// or an inverted path.
func behind(form string) string { return form + "\xff" }

// Limits of a filter: the number of its conjunctions, its nesting, the number of values of a NOT_IN,
// and the number of properties with inequalities. The last limit is on a query: its filters, sort
// orders and ancestor together. The sources are the documentation of OR queries and of inequalities
// on several properties, and the limits page.
const (
	maxDisjunctions = 30
	maxFilterDepth  = 20
	maxNotIn        = 10
	maxUnequal      = 10
	maxParts        = 100
)

// checkParts returns an error if a query has too many filters, sort orders and ancestors.
func checkParts(n int) error {
	if n > maxParts {
		return model.Invalid("The query may not have more than %d filters + sort orders + ancestor total.", maxParts)
	}
	return nil
}

// A filterParser converts a filter into conjunctions.
type filterParser struct {
	db        model.Database
	namespace string
	notEqual  int // number of NOT_EQUAL and NOT_IN filters
	notIn     int
	either    int             // number of OR and IN filters
	filters   int             // number of filters; an IN or a NOT_IN has one for each different value
	ancestors map[string]bool // the ancestors in HAS_ANCESTOR filters
}

// parseFilter returns the conjunctions of a filter. It also returns the number of the query's parts
// so far: the filters and the ancestor.
func parseFilter(db model.Database, namespace string, f *pb.Filter) (all []*conjunction, parts int, err error) {
	if f == nil {
		return []*conjunction{{}}, 0, nil
	}
	p := &filterParser{db: db, namespace: namespace, ancestors: make(map[string]bool)}
	all, err = p.parse(f, 0)
	switch {
	case err != nil:
		return nil, 0, err
	case p.notEqual > 1:
		return nil, 0, model.Invalid("Only a single 'NOT_EQUAL' or 'NOT_IN' is allowed per query.")
	case p.notIn > 0 && p.either > 0:
		return nil, 0, model.Invalid("a query with NOT_IN can't have OR or IN")
	case len(p.ancestors) > 1:
		return nil, 0, model.Invalid("a query has one ancestor, this one has %d", len(p.ancestors))
	}
	for _, c := range all[1:] {
		if c.ancestor != all[0].ancestor {
			return nil, 0, model.Invalid("all disjunctions of a query need the same HAS_ANCESTOR filter")
		}
	}
	for _, c := range all {
		c.join()
	}
	return all, p.filters + len(p.ancestors), nil
}

// join applies the inequalities on a property also to its equalities: a value that both name must
// satisfy the inequalities. Google's Firestore emulator does the same.
func (c *conjunction) join() {
	sorted := slices.Clone(c.equal)
	slices.SortFunc(sorted, func(a, b condition) int {
		return cmp.Or(strings.Compare(a.property, b.property), strings.Compare(a.form, b.form))
	})
	c.wanted = nil
	for _, e := range slices.Compact(sorted) {
		if n := len(c.wanted); n > 0 && c.wanted[n-1].property == e.property {
			c.wanted[n-1].forms = append(c.wanted[n-1].forms, e.form)
		} else {
			c.wanted = append(c.wanted, wanted{e.property, []string{e.form}})
		}
	}
	c.between = slices.Clone(c.between)
	slices.SortFunc(c.between, func(a, b *interval) int { return strings.Compare(a.property, b.property) })
	for i, iv := range c.between {
		if w, ok := c.wants(iv.property); ok {
			c.never = c.never || !slices.ContainsFunc(w.forms, iv.holds)
			c.between[i] = &interval{property: iv.property}
		}
	}
	c.indexed, c.ancestral = nil, true
	for _, w := range c.wanted[:min(len(c.wanted), maxIndexed)] {
		c.indexed = append(c.indexed, condition{w.property, w.forms[0]})
	}
}

// maxIndexed is the largest number of equalities in an index. The other equalities are checked on
// each entity that the index finds. Without this limit, a query could need an index of a hundred
// properties.
const maxIndexed = 8

func (p *filterParser) parse(f *pb.Filter, depth int) ([]*conjunction, error) {
	if depth > maxFilterDepth {
		return nil, model.Invalid("filters can be nested %d deep", maxFilterDepth)
	}
	composite := f.GetCompositeFilter()
	if composite == nil {
		return p.property(f.GetPropertyFilter())
	}
	if len(composite.Filters) == 0 {
		return nil, model.Invalid("a composite filter has no filters")
	}
	var result []*conjunction
	for i, sub := range different(composite.Filters) {
		alternatives, err := p.parse(sub, depth+1)
		if err != nil {
			return nil, err
		}
		switch composite.Op {
		case pb.CompositeFilter_AND:
			if i == 0 {
				result = alternatives
				continue
			}
			if len(result)*len(alternatives) > maxDisjunctions {
				return nil, model.Invalid("the filter comes to more than %d disjunctions", maxDisjunctions)
			}
			var both []*conjunction
			for _, a := range result {
				for _, b := range alternatives {
					both = append(both, a.and(b))
				}
			}
			result = both
		case pb.CompositeFilter_OR:
			p.either++
			result = append(result, alternatives...)
		default:
			return nil, model.Invalid("a composite filter has no operator")
		}
	}
	if len(result) > maxDisjunctions {
		return nil, model.Invalid("the filter comes to more than %d disjunctions", maxDisjunctions)
	}
	return result, nil
}

// different returns the filters of a composite filter without repeated ones, as Google's Firestore
// emulator does. It keeps repeated NOT_EQUAL and NOT_IN filters, because a query may have only one.
func different(filters []*pb.Filter) (all []*pb.Filter) {
	seen := make(map[string]bool)
	for _, f := range filters {
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
		op := f.GetPropertyFilter().GetOp()
		once := op == pb.PropertyFilter_NOT_EQUAL || op == pb.PropertyFilter_NOT_IN
		if err != nil || once || !seen[string(wire)] {
			all = append(all, f)
		}
		seen[string(wire)] = true
	}
	return all
}

// and returns the conjunction of c and o.
func (c *conjunction) and(o *conjunction) *conjunction {
	both := &conjunction{
		lo: max(c.lo, o.lo), hi: lower(c.hi, o.hi), ranged: c.ranged || o.ranged, ancestor: max(c.ancestor, o.ancestor),
		notKeys: union(c.notKeys, o.notKeys),
		equal:   slices.Concat(c.equal, o.equal),
	}
	for _, iv := range slices.Concat(c.between, o.between) {
		i := slices.IndexFunc(both.between, func(b *interval) bool { return b.property == iv.property })
		if i < 0 {
			both.between = append(both.between, iv)
			continue
		}
		b := both.between[i]
		both.between[i] = &interval{iv.property, max(b.lo, iv.lo), lower(b.hi, iv.hi), union(b.not, iv.not)}
	}
	return both
}

// lower returns the lower of two upper bounds. An empty one is no bound.
func lower(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

func union(a, b map[string]bool) map[string]bool {
	if len(a) == 0 {
		return b
	}
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// property returns the conjunctions of a filter on one property.
func (p *filterParser) property(f *pb.PropertyFilter) ([]*conjunction, error) {
	name, op := f.GetProperty().GetName(), f.GetOp()
	values := []*pb.Value{f.GetValue()}
	if err := model.CheckPropertyName(name); err != nil {
		return nil, err
	}
	if op == pb.PropertyFilter_IN || op == pb.PropertyFilter_NOT_IN {
		values = f.GetValue().GetArrayValue().GetValues()
		if len(values) == 0 {
			return nil, model.Invalid("%v requires an non-empty ArrayValue.", op)
		}
	}
	forms := make([]string, len(values))
	for i, v := range values {
		var err error
		if forms[i], err = p.form(name, v); err != nil {
			return nil, err
		}
	}
	if op == pb.PropertyFilter_IN || op == pb.PropertyFilter_NOT_IN {
		if err := checkValues(op, len(forms)); err != nil {
			return nil, err
		}
		slices.Sort(forms)
		forms = slices.Compact(forms)
	}
	if op != pb.PropertyFilter_HAS_ANCESTOR {
		p.filters += len(forms)
	}
	if err := checkParts(p.filters); err != nil {
		return nil, err
	}
	if op == pb.PropertyFilter_IN {
		p.either++
		all := make([]*conjunction, len(forms))
		for i, form := range forms {
			all[i] = equals(name, form)
		}
		return all, nil
	}
	c, err := p.one(name, op, forms)
	if err != nil {
		return nil, err
	}
	return []*conjunction{c}, nil
}

// checkValues returns an error if an IN or a NOT_IN has too many values.
func checkValues(op pb.PropertyFilter_Operator, n int) error {
	switch {
	case op == pb.PropertyFilter_IN && n > maxDisjunctions:
		return model.Invalid("IN supports up to %d values. There are %d values in the IN filter in your query.",
			maxDisjunctions, n)
	case op == pb.PropertyFilter_NOT_IN && n > maxNotIn:
		return model.Invalid("NOT_IN supports up to %d values.", maxNotIn)
	}
	return nil
}

// one converts a condition on one property, with one operator, into a conjunction. forms has the
// ordered forms of its values.
func (p *filterParser) one(name string, op pb.PropertyFilter_Operator, forms []string) (*conjunction, error) {
	switch op {
	case pb.PropertyFilter_NOT_IN, pb.PropertyFilter_NOT_EQUAL:
		if op == pb.PropertyFilter_NOT_IN {
			p.notIn++
		}
		p.notEqual++
		not := make(map[string]bool)
		for _, form := range forms {
			not[form] = true
		}
		if name == model.KeyProperty {
			return &conjunction{notKeys: not, ranged: true}, nil
		}
		return &conjunction{between: []*interval{{property: name, not: not}}}, nil
	case pb.PropertyFilter_EQUAL:
		return equals(name, forms[0]), nil
	case pb.PropertyFilter_HAS_ANCESTOR:
		if name != model.KeyProperty {
			return nil, model.Invalid("a HAS_ANCESTOR filter is on __key__, not on %q", name)
		}
		prefix := strings.TrimSuffix(forms[0], string(collate.PathEnd))
		p.ancestors[prefix] = true
		return &conjunction{lo: prefix, hi: prefix + string(collate.PathElement+1), ancestor: prefix}, nil
	}
	lo, hi, ok := bounds(op, forms[0])
	switch {
	case !ok:
		return nil, model.Invalid("a filter on %q has no operator", name)
	case name == model.KeyProperty:
		return &conjunction{lo: lo, hi: hi, ranged: true}, nil
	}
	return &conjunction{between: []*interval{{property: name, lo: lo, hi: hi}}}, nil
}

// bounds returns the bounds of the values that satisfy an inequality with the value form. It
// returns false if the operator is no inequality.
func bounds(op pb.PropertyFilter_Operator, form string) (lo, hi string, ok bool) {
	switch op {
	case pb.PropertyFilter_LESS_THAN:
		return "", form, true
	case pb.PropertyFilter_LESS_THAN_OR_EQUAL:
		return "", behind(form), true
	case pb.PropertyFilter_GREATER_THAN:
		return behind(form), "", true
	case pb.PropertyFilter_GREATER_THAN_OR_EQUAL:
		return form, "", true
	}
	return "", "", false
}

func equals(property, form string) *conjunction {
	if property == model.KeyProperty {
		return &conjunction{lo: form, hi: behind(form)}
	}
	return &conjunction{equal: []condition{{property, form}}}
}

// form returns the ordered form of a value in a filter.
func (p *filterParser) form(property string, v *pb.Value) (string, error) {
	if v.GetExcludeFromIndexes() {
		return "", model.Invalid("the value of the filter on %q is excluded from indexes", property)
	}
	if property != model.KeyProperty {
		if v.GetArrayValue() != nil || v.GetEntityValue() != nil || v.GetValueType() == nil {
			return "", model.Invalid("the filter on the property %q has no value, an array or an entity", property)
		}
		v = proto.CloneOf(v) // the check changes values
		if v.Meaning == model.ProjectionMeaning {
			v.Meaning = 0
		}
		if err := p.db.CheckValue(property, v, 0, false); err != nil {
			return "", err
		}
		return collate.Value(v), nil
	}
	if v.GetKeyValue() == nil {
		return "", model.Invalid("__key__ filter value must be a Key")
	}
	key, err := p.db.ReadKey(v.GetKeyValue())
	if err != nil {
		return "", err
	}
	if key.Namespace != p.namespace {
		return "", model.Invalid("__key__ filter namespace is %q but query namespace is %q", key.Namespace, p.namespace)
	}
	return key.Path, nil
}
