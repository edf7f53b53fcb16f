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

// Orders returns the definition without what a query can do without.
func (d Definition) Orders() Definition {
	return slices.DeleteFunc(slices.Clone(d), func(o Order) bool { return o.Equal })
}

// Names are names of properties, sorted, each once.
type Names []string

// NamesOf returns some names in order.
func NamesOf(names []string) Names {
	slices.Sort(names)
	return slices.Compact(names)
}

// Read reports whether a property of that name is one of them, or has one of them inside it.
// It copies no text, as it is asked of each property of each entity that a scan reads.
func (n Names) Read(name []byte) bool {
	for _, one := range n {
		if len(one) >= len(name) && one[:len(name)] == string(name) &&
			(len(one) == len(name) || one[len(name)] == '.') {
			return true
		}
	}
	return false
}

// names returns the names of the properties that the index depends on.
func (d Definition) names() Names {
	all := make([]string, len(d))
	for i, o := range d {
		all[i] = o.Property
	}
	return NamesOf(all)
}

// An index has an entry for each combination of the values that any kept version
// of a record has: their ordered forms, and the key's. A scan looks at the version
// that it sees.
type index struct {
	definition Definition
	names      Names
	entries    btree.Map[string, entry]
	bytes      int64 // of memory, about

	used   int64 // when a query asked for it last, as Totals count
	upkeep int   // entries that were written since
	held   int   // by how many queries, now
	excess int   // versions that have more entries than an index may have of an entity, and are not in it
	counts []int // of the last such one: how many values it has of each of the definition's properties
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

// fewEntries are always few enough for an index of equalities.
const fewEntries = 128

// Fits reports whether an entity that has so many values of each of the definition's
// properties can be in the index. Where a query could do with fewer equalities, the
// combinations of several arrays are no more than a few times the arrays' values; those of
// one array always fit.
func (d Definition) Fits(counts []int) bool {
	product, sum, limit := 1, 0, MaxEntries
	for _, n := range counts {
		if product *= n; product > MaxEntries {
			return false
		}
		sum += n
	}
	if slices.ContainsFunc(d, func(o Order) bool { return o.Equal }) {
		const times = 4
		limit = max(fewEntries, times*sum)
	}
	return product <= limit
}

// entriesOf returns the entries of an entity, unless these are too many to fit.
func (idx *index) entriesOf(path string, properties map[string]*pb.Value) (entries []string, fit bool) {
	all := make([][]collate.Entry, len(idx.definition))
	counts := make([]int, len(idx.definition))
	for i, o := range idx.definition {
		switch o.Property {
		case model.KeyProperty:
			counts[i] = 1
			continue
		case AncestorProperty:
			all[i] = collate.Ancestors(path)
		default:
			all[i] = collate.Entries(properties, o.Property)
		}
		if counts[i] = len(all[i]); counts[i] == 0 {
			return nil, true
		}
	}
	if !idx.definition.Fits(counts) {
		idx.counts = counts
		return nil, false
	}
	entries = []string{""}
	keyed := false
	for i, o := range idx.definition {
		if o.Property == model.KeyProperty {
			keyed = true
			for i := range entries {
				entries[i] += Directed(o, path)
			}
			continue
		}
		values := all[i]
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
	Equal      bool // of an equality or an ancestor: a query can do without, and look at more entries
}

// Directed returns a form as it is in the direction of an order.
func Directed(o Order, form string) string {
	if o.Descending {
		return collate.Invert(form)
	}
	return form
}
