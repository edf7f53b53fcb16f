package store

import (
	"slices"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Definition defines an index by its properties. First come the properties that queries compare
// for equality, marked Equal, and then the orders. An entity that lacks one of the properties is
// not in the index.
type Definition []Order

// AncestorProperty stands for a property of an index whose values are the paths of an entity and of
// its ancestors.
const AncestorProperty = "__ancestor__"

// String returns the properties in the notation of a query's orders.
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

// Names is a sorted list of property names without duplicates.
type Names []string

// NamesOf sorts names and removes duplicates.
func NamesOf(names []string) Names {
	slices.Sort(names)
	return slices.Compact(names)
}

// Needs reports whether a scan that needs the listed properties must decode the property with this
// name. It must if the list has the name, or the name of a property nested in it: "a.b" needs "a".
// The name is in bytes, as in wire form, because a scan calls Needs for each property of each
// entity, and must not copy the name.
func (n Names) Needs(name []byte) bool {
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

// An index has entries for all stored versions of a kind's records, including old ones. A version
// has an entry for each combination of its values. An entry consists of the ordered forms of the
// values and of the key. A scan finds the record by an entry, and then looks at the version of its
// time.
type index struct {
	definition Definition
	names      Names
	entries    btree.Map[string, entry]
	bytes      int64 // the estimated size of the index in memory

	used   int64 // the value of Totals.uses when a query last used the index
	upkeep int   // number of entries that were written since the last use
	held   int   // number of queries that use the index now
	excess int   // number of versions that are not in the index because they have too many entries
	counts []int // for the last of these versions, the numbers of its values of the definition's properties
}

// An entry is the record of an index entry, and the number of the record's versions that have this
// entry.
type entry struct {
	record   *Record
	versions int
}

// entryOverhead is the estimated number of bytes that an entry takes in memory besides its key.
const entryOverhead = 80

// add adds the entries of a version with the given properties.
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

// remove removes the entries of a version that is dropped. An entry stays if another version of the
// record has it, too.
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

// idle reports whether the index costs more than it is worth. That is, writes to it since its last
// use took several times as much work as building it again would.
func (idx *index) idle() bool {
	const times, least = 4, 4096
	return idx.held == 0 && idx.upkeep > times*idx.entries.Len()+least
}

// MaxEntries is the largest number of entries of an entity in an index. An entity with several
// arrays has an entry for each combination of their values. In production, the limit is for all
// indexes together.
const MaxEntries = 20000

// fewEntries is a number of entries that an entity may always have in an index with equalities.
const fewEntries = 128

// Fits reports whether an entity can be in the index. counts has the entity's numbers of values for
// the definition's properties. The number of combinations of these values may be at most
// MaxEntries.
//
// If the index has equalities, the limit is lower: a few times the number of values. With more
// combinations, a query should use an index with fewer equalities instead. The values of a single
// array always fit.
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

// entriesOf returns the entries of an entity. If there are too many, it returns false.
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
	// whether the property is compared for equality, or is an ancestor's. A query can use an index
	// without it, but then looks at more entries.
	Equal bool
}

// Directed returns an ordered form for the direction of an order. For a descending order, it
// inverts the form.
func Directed(o Order, form string) string {
	if o.Descending {
		return collate.Invert(form)
	}
	return form
}
