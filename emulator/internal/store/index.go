package store

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Definition is what an index is over: the properties of equalities, and then
// the orders of a query. Whoever lacks one of them is not in the index.
type Definition []Order

// AncestorProperty stands, in a definition, for an entity itself and each of its
// ancestors.
const AncestorProperty = "__ancestor__"

// String returns the orders as a query has them.
func (d Definition) String() string {
	names := make([]string, len(d))
	for i, o := range d {
		if names[i] = o.Property; o.Descending {
			names[i] = "-" + o.Property
		}
	}
	return strings.Join(names, ", ")
}

// reads reports whether the index depends on a property of that name, or on one
// inside it.
func (d Definition) reads(name string) bool {
	return slices.ContainsFunc(d, func(o Order) bool {
		p := o.Property
		return strings.HasPrefix(p, name) && (len(p) == len(name) || p[len(name)] == '.')
	})
}

// An index has an entry for each combination of the values that any kept version
// of a record has: their ordered forms, and the key's. A scan looks at the version
// that it sees.
type index struct {
	definition Definition
	entries    btree.Map[string, entry]
	bytes      int64 // of memory, about

	used   int64 // when a query asked for it last, as Totals count
	upkeep int   // entries that were written since
	held   int   // by how many queries, now
	excess int   // versions that have more entries than an index may have of an entity, and are not in it
}

// An entry leads to a record, of which some versions have it.
type entry struct {
	record   *Record
	versions int
}

// entryOverhead is what an entry takes besides its bytes, about.
const entryOverhead = 80

// add adds the entries of a version.
func (idx *index) add(r *Record, properties map[string]*pb.Value) {
	entries, fit := idx.entriesOf(r.Path, properties)
	if !fit {
		idx.excess++
	}
	for _, key := range entries {
		e, ok := idx.entries.Get(key)
		idx.entries.Set(key, entry{r, e.versions + 1})
		if idx.upkeep++; !ok {
			idx.bytes += int64(len(key)) + entryOverhead
		}
	}
}

// remove removes the entries of a version that is not kept any more, unless
// another one has them.
func (idx *index) remove(r *Record, properties map[string]*pb.Value) {
	entries, fit := idx.entriesOf(r.Path, properties)
	if !fit {
		idx.excess--
	}
	for _, key := range entries {
		idx.upkeep++
		if e, _ := idx.entries.Get(key); e.versions > 1 {
			idx.entries.Set(key, entry{r, e.versions - 1})
		} else if _, ok := idx.entries.Delete(key); ok {
			idx.bytes -= int64(len(key)) + entryOverhead
		}
	}
}

// idle reports whether keeping the index up to date since it was last asked for has
// taken several times as much as building it again would.
func (idx *index) idle() bool {
	const times, least = 4, 4096
	return idx.held == 0 && idx.upkeep > times*idx.entries.Len()+least
}

// MaxEntries bounds the combinations of the values of arrays: as many entries as
// production allows an entity to have in all indexes.
const MaxEntries = 20000

// entriesOf returns the entries of an entity, unless these are too many to fit.
func (idx *index) entriesOf(path string, properties map[string]*pb.Value) (entries []string, fit bool) {
	entries = []string{""}
	keyed := false
	for _, o := range idx.definition {
		if o.Property == model.KeyProperty {
			keyed = true
			for i := range entries {
				entries[i] += Directed(o, path)
			}
			continue
		}
		values := collate.Entries(properties, o.Property)
		if o.Property == AncestorProperty {
			values = collate.Ancestors(path)
		}
		switch {
		case len(values) == 0:
			return nil, true
		case len(entries)*len(values) > MaxEntries:
			return nil, false
		}
		longer := make([]string, 0, len(entries)*len(values))
		for _, e := range entries {
			for _, v := range values {
				longer = append(longer, e+Directed(o, v.Form))
			}
		}
		entries = longer
	}
	if !keyed {
		for i := range entries {
			entries[i] += path
		}
	}
	return entries, true
}

// An Order is a property in a direction.
type Order struct {
	Property   string
	Descending bool
}

// Directed returns a form as it is in the direction of an order.
func Directed(o Order, form string) string {
	if o.Descending {
		return collate.Invert(form)
	}
	return form
}
