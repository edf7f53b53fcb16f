package dsemu

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A definition is what an index is over: the properties of equalities, and then
// the orders of a query. Whoever lacks one of them is not in the index.
type definition []order

// ancestorProperty stands, in a definition, for an entity itself and each of its
// ancestors.
const ancestorProperty = "__ancestor__"

// An index has an entry for each combination of the values that any kept version
// of a record has: their ordered forms, and the key's. A scan looks at the version
// that it sees.
type index struct {
	definition definition
	entries    btree.Map[string, entry]
}

// An entry leads to a record, of which some versions have it.
type entry struct {
	record   *record
	versions int
}

// add adds the entries of a version.
func (idx *index) add(r *record, properties map[string]*pb.Value) {
	for _, key := range idx.entriesOf(r.path, properties) {
		e, _ := idx.entries.Get(key)
		idx.entries.Set(key, entry{r, e.versions + 1})
	}
}

// remove removes the entries of a version that is not kept any more, unless
// another one has them.
func (idx *index) remove(r *record, properties map[string]*pb.Value) {
	for _, key := range idx.entriesOf(r.path, properties) {
		if e, _ := idx.entries.Get(key); e.versions > 1 {
			idx.entries.Set(key, entry{r, e.versions - 1})
		} else {
			idx.entries.Delete(key)
		}
	}
}

// maxEntries bounds the combinations of the values of arrays: as many entries as
// production allows an entity to have in all indexes.
const maxEntries = 20000

// entriesOf returns the entries of an entity.
func (idx *index) entriesOf(path string, properties map[string]*pb.Value) []string {
	entries := []string{""}
	keyed := false
	for _, o := range idx.definition {
		if o.property == model.KeyProperty {
			keyed = true
			for i := range entries {
				entries[i] += directed(o, path)
			}
			continue
		}
		values := collate.Entries(properties, o.property)
		if o.property == ancestorProperty {
			values = collate.Ancestors(path)
		}
		if len(values) == 0 || len(entries)*len(values) > maxEntries {
			return nil
		}
		longer := make([]string, 0, len(entries)*len(values))
		for _, e := range entries {
			for _, v := range values {
				longer = append(longer, e+directed(o, v.Form))
			}
		}
		entries = longer
	}
	if !keyed {
		for i := range entries {
			entries[i] += path
		}
	}
	return entries
}

// A scan is the part of an index, or of the keys themselves, that the results of
// a conjunction are in, in the order of the query.
type scan struct {
	definition definition // empty: the keys
	prefix     string     // of all entries: the values of the equalities
	lo, hi     string     // behind the prefix; an empty hi is the prefix's end
	reverse    bool       // of the keys: downwards
}

// plan returns the scan of a conjunction.
func (q *query) plan(c *conjunction) scan {
	var s scan
	for _, e := range c.equal {
		if !slices.ContainsFunc(s.definition, func(o order) bool { return o.property == e.property }) {
			s.definition = append(s.definition, order{property: e.property})
		}
	}
	slices.SortFunc(s.definition, func(a, b order) int {
		if a.property < b.property {
			return -1
		}
		return 1
	})
	for _, o := range s.definition {
		i := slices.IndexFunc(c.equal, func(e condition) bool { return e.property == o.property })
		s.prefix += c.equal[i].form
	}
	s.lo, s.hi = c.lo, c.hi
	byProperty := len(q.orders) > 0 && q.orders[0].property != model.KeyProperty
	if byProperty && c.ancestor != "" {
		s.definition = append(definition{{property: ancestorProperty}}, s.definition...)
		s.prefix = c.ancestor + string(collate.PathEnd) + s.prefix
	}
	s.definition = append(s.definition, q.orders...)
	if len(q.orders) > 0 {
		first := q.orders[0]
		if byProperty {
			s.lo, s.hi = "", ""
			if i := slices.IndexFunc(c.between, func(iv *interval) bool { return iv.property == first.property }); i >= 0 {
				s.lo, s.hi = c.between[i].lo, c.between[i].hi
			}
		}
		switch {
		case first.property == model.KeyProperty && len(s.definition) == len(q.orders) && len(q.orders) == 1:
			s.definition, s.reverse = nil, first.descending
		case first.descending:
			s.lo, s.hi = invertBounds(s.lo, s.hi)
		}
	}
	return s
}

// invertBounds returns the bounds of an interval in descending order. They may be
// a little too wide: rows are checked anyway.
func invertBounds(lo, hi string) (string, string) {
	from, to := "", ""
	if hi != "" {
		from = collate.Invert(strings.TrimSuffix(hi, behind("")))
	}
	if lo != "" {
		to = behind(collate.Invert(lo))
	}
	return from, to
}

func directed(o order, form string) string {
	if o.descending {
		return collate.Invert(form)
	}
	return form
}
