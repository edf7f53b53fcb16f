package store

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Definition defines an index: first the properties that queries compare for equality, which are
// marked Equal, and then the orders. An entity that lacks one of these properties is not in the
// index.
type Definition []Order

// AncestorProperty stands in a definition for an entity and each of its ancestors.
const AncestorProperty = "__ancestor__"

// String returns the orders as a query writes them.
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

// Names are sorted names of properties, each once.
type Names []string

// NamesOf returns names, sorted.
func NamesOf(names []string) Names {
	slices.Sort(names)
	return slices.Compact(names)
}

// Read reports whether a property of the name is one of them, or has one of them nested inside. It
// copies no text, as a scan calls it for each property of each entity.
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

// An index has an entry for each combination of values of each kept version of a record. An entry
// consists of the values' ordered forms and the key's. A scan then looks at the version that it
// sees.
type index struct {
	definition Definition
	names      Names
	entries    btree.Map[string, entry]
	bytes      int64 // of memory, estimated

	used   int64 // Totals.uses when a query used it last
	upkeep int   // entries written since then
	held   int   // number of queries that hold it now
	excess int   // versions with too many entries, which are not in it
	counts []int // of the last such version: number of values of each of the definition's properties
}

// An entry leads to a record; at least one of its versions has the entry.
type entry struct {
	record   *Record
	versions int
}

// entryOverhead estimates the memory of an entry besides its bytes.
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

// remove removes the entries of a version that is dropped, except those that another version has.
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

// idle reports whether the upkeep of the index since its last use has taken several times as much
// work as building it again would.
func (idx *index) idle() bool {
	const times, least = 4, 4096
	return idx.held == 0 && idx.upkeep > times*idx.entries.Len()+least
}

// MaxEntries is the maximum of combinations of the values of arrays. Production allows an entity
// this number of entries in all indexes.
const MaxEntries = 20000

// fewEntries is a number of entries that an index of equalities always accepts.
const fewEntries = 128

// Fits reports whether an entity with these numbers of values of the definition's properties can be
// in the index. If a query can do with fewer equalities, the combinations of several arrays may be
// at most a few times the arrays' values. The values of a single array always fit.
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

// entriesOf returns the entries of an entity, or none if they are too many.
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
	Equal      bool // of an equality or an ancestor: a query can do without it, and look at more entries
}

// Directed returns a form in the direction of an order.
func Directed(o Order, form string) string {
	if o.Descending {
		return collate.Invert(form)
	}
	return form
}
