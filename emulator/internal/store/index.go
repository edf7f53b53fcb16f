package store

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Definition defines an index by its properties: first those that queries compare for equality,
// which are marked Equal, and then the orders. An entity that lacks one of these properties is not
// in the index.
type Definition []Order

// AncestorProperty is a property in a definition that stands for an entity's own path and the paths
// of its ancestors.
const AncestorProperty = "__ancestor__"

// String returns the properties in the form of a query's orders.
func (d Definition) String() string {
	names := make([]string, len(d))
	for i, o := range d {
		if names[i] = o.Property; o.Descending {
			names[i] = "-" + o.Property
		}
	}
	return strings.Join(names, ", ")
}

// Orders returns the orders of the definition, without its equalities.
func (d Definition) Orders() Definition {
	return slices.DeleteFunc(slices.Clone(d), func(o Order) bool { return o.Equal })
}

// Names is a sorted list of names of properties, each once.
type Names []string

// NamesOf sorts names.
func NamesOf(names []string) Names {
	slices.Sort(names)
	return slices.Compact(names)
}

// Read reports whether the list has a property's name, or the name of something nested inside the
// property. It copies no text, because a scan calls it for each property of each entity.
func (n Names) Read(name []byte) bool {
	for _, one := range n {
		if len(one) >= len(name) && one[:len(name)] == string(name) &&
			(len(one) == len(name) || one[len(name)] == '.') {
			return true
		}
	}
	return false
}

// names returns the names of the properties in the definition.
func (d Definition) names() Names {
	all := make([]string, len(d))
	for i, o := range d {
		all[i] = o.Property
	}
	return NamesOf(all)
}

// An index has an entry for each combination of values of each stored version of a record. An entry
// consists of the ordered forms of the values and the key. A scan then looks at the version that it
// has to see.
type index struct {
	definition Definition
	names      Names
	entries    btree.Map[string, entry]
	bytes      int64 // the estimated size of the index in memory

	used   int64 // the value of Totals.uses when a query last used the index
	upkeep int   // number of entries that were written since the last use
	held   int   // number of queries that use the index now
	excess int   // number of versions that have too many entries, and are not in the index
	counts []int // for the last such version, the numbers of values of the definition's properties
}

// An entry leads from its bytes to a record with at least one version that has the entry.
type entry struct {
	record   *Record
	versions int
}

// entryOverhead is the estimated size of an entry in memory, besides its bytes.
const entryOverhead = 80

// add adds the entries of a version of a record. The version has the given properties.
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

// remove removes the entries of a version that is dropped, except entries that another version of
// the record has, too.
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

// idle reports whether the index costs more than it is worth. Since its last use, writing to it has
// taken several times as much work as building it again would.
func (idx *index) idle() bool {
	const times, least = 4, 4096
	return idx.held == 0 && idx.upkeep > times*idx.entries.Len()+least
}

// MaxEntries is the largest number of entries of an entity in an index. They are combinations of
// the values of arrays. In production the limit is for all indexes together.
const MaxEntries = 20000

// fewEntries is a number of entries of an entity that is always accepted in an index of equalities.
const fewEntries = 128

// Fits reports whether an entity can be in the index. The numbers of its values for the
// definition's properties are counts. If a query can do with fewer equalities, the combinations of
// several arrays may be at most a few times the arrays' values. The values of a single array always
// fit.
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

// entriesOf returns the entries of an entity. If they are too many, it returns none, and false.
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

// An Order is a property of an index or a query, with a direction.
type Order struct {
	Property   string
	Descending bool
	// whether the order is of an equality or an ancestor. A query can do without such an order, if
	// it looks at more entries.
	Equal bool
}

// Directed returns an ordered form in the direction of an order: for descending order, it inverts
// the form.
func Directed(o Order, form string) string {
	if o.Descending {
		return collate.Invert(form)
	}
	return form
}
