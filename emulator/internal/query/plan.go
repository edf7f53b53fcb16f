package query

import (
	"slices"
	"strings"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A scan is the part of an index, or of the keys, that a query reads for one conjunction. Its
// entries are in the order of the query.
type scan struct {
	definition store.Definition // the definition of the index to read; empty: the keys
	prefix     string           // the common start of all entries to read: the forms of the equalities' values
	lo, hi     string           // bounds of what follows the prefix in an entry; empty hi: no bound
	reverse    bool             // whether to read keys in descending order
}

// plan returns the scan that finds the entities of a conjunction.
func (q *Query) plan(c *conjunction) scan {
	var s scan
	for _, e := range c.indexed {
		s.definition = append(s.definition, store.Order{Property: e.property, Equal: true})
		s.prefix += e.form
	}
	s.lo, s.hi = c.lo, c.hi
	byProperty := len(q.orders) > 0 && q.orders[0].Property != model.KeyProperty
	if byProperty && c.ancestor != "" && c.ancestral {
		s.definition = append(store.Definition{{Property: store.AncestorProperty, Equal: true}}, s.definition...)
		s.prefix = c.ancestor + string(collate.PathEnd) + s.prefix
	}
	s.definition = append(s.definition, q.orders...)
	if len(q.orders) > 0 {
		first := q.orders[0]
		if byProperty {
			s.lo, s.hi = "", ""
			if iv := c.within(first.Property); iv != nil {
				s.lo, s.hi = iv.lo, iv.hi
			}
		}
		switch {
		case first.Property == model.KeyProperty && len(s.definition) == len(q.orders) && len(q.orders) == 1:
			s.definition, s.reverse = nil, first.Descending
		case first.Descending:
			s.lo, s.hi = invertBounds(s.lo, s.hi)
		}
	}
	return s
}

// narrow drops equalities from a conjunction's index, because an entity has too many index entries.
// counts has the entity's numbers of values for the properties of the present index. Equalities on
// the properties with most values are dropped first. It returns false if no equality is left to
// drop.
func (q *Query) narrow(c *conjunction, counts []int) bool {
	d := slices.Clone(q.plan(c).definition)
	counts = slices.Clone(counts)
	for !d.Fits(counts) {
		widest := -1
		for i, o := range d {
			if o.Equal && (widest < 0 || counts[i] > counts[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		if property := d[widest].Property; property == store.AncestorProperty {
			c.ancestral = false
		} else {
			c.indexed = slices.DeleteFunc(c.indexed, func(e condition) bool { return e.property == property })
		}
		d, counts = slices.Delete(d, widest, widest+1), slices.Delete(counts, widest, widest+1)
	}
	return true
}

// invertBounds returns the bounds of an interval for descending order. They must include every form
// in the interval. They may include a little more, because a query checks each row anyway. A lower
// bound may be a prefix of forms in the interval, such as an ancestor's path.
func invertBounds(lo, hi string) (string, string) {
	from, to := "", ""
	if hi != "" {
		from = collate.Invert(strings.TrimSuffix(hi, behind("")))
	}
	if lo != "" {
		to = afterAll(collate.Invert(lo))
	}
	return from, to
}

// afterAll returns the lowest string that is above all strings with a prefix. It returns "" if
// there is none.
func afterAll(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xFF {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}
