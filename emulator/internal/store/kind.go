package store

import (
	"math/rand/v2"
	"slices"

	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Kind has the records of one kind in one namespace, and their indexes. Its maps are sorted by
// key, so a scan of a range reads only this range.
type Kind struct {
	Name    string
	Records btree.Map[string, *Record] // the records, by the ordered form of the key
	scatter btree.Map[string, *Record] // the records with the property __scatter__, by its value and the key
	indexes []*index                   // the indexes, each built when a query first needs it
	builds  []*Build                   // builds of more indexes, which are under way
	totals  *Totals
}

// Totals are sums over all kinds of a database.
type Totals struct {
	Old     int64 // total size in bytes of the older versions of entities, and of deleted entities
	Indexes int64 // total size of the indexes in bytes

	uses int64 // number of times that queries have used an index
}

// use records that a query uses an index.
func (t *Totals) use(idx *index) {
	t.uses++
	idx.used, idx.upkeep = t.uses, 0
}

// NewKind returns a kind without records. It adds its sizes to t.
func NewKind(name string, t *Totals) *Kind { return &Kind{Name: name, totals: t} }

// Put adds a version to the record with a key, and returns the record, which may be new. The
// proportion is a number n: on average, one in n records has the property __scatter__.
func (k *Kind) Put(key model.Key, v Version, proportion int) *Record {
	r, ok := k.Records.Get(key.Path)
	if !ok {
		r = &Record{Path: key.Path, Last: v}
		k.Records.Set(r.Path, r)
		if value, ok := Scatter(key.PB.Path, proportion); ok {
			k.scatter.Set(string(value[:])+r.Path, r)
		}
	} else {
		if !r.Last.Deleted {
			k.totals.Old += r.Last.size()
		}
		r.add(v)
	}
	if v.Deleted {
		k.totals.Old += v.size()
	} else {
		k.change(r, v, false)
	}
	return r
}

// change adds a version of a record to all indexes, or removes the version from all indexes.
func (k *Kind) change(r *Record, v Version, remove bool) {
	for _, b := range k.builds {
		b.note(r, update{r, v.Form, remove})
	}
	if len(k.indexes) == 0 {
		return
	}
	properties := v.Some(func(name []byte) bool {
		return slices.ContainsFunc(k.indexes, func(idx *index) bool { return idx.names.Needs(name) })
	})
	idle := false
	for _, idx := range k.indexes {
		before := idx.bytes
		if remove {
			idx.remove(r, properties)
		} else {
			idx.add(r, properties)
		}
		k.totals.Indexes += idx.bytes - before
		idle = idle || idx.idle()
	}
	if idle {
		k.drop((*index).idle)
	}
}

// Prune drops the old versions of a record that no read sees any more. The horizon is the earliest
// time that reads may still see, in microseconds since 1970. Prune also drops the index entries of
// these versions. If the entity was deleted before that time, it drops the whole record. It returns
// the number of dropped versions.
func (k *Kind) Prune(r *Record, horizon int64) int {
	dropped := r.prune(horizon)
	for _, v := range dropped {
		k.totals.Old -= v.size()
		if !v.Deleted {
			k.change(r, v, true)
		}
	}
	if len(r.older) > 0 || !r.Last.Deleted || r.Last.At > horizon {
		return len(dropped)
	}
	if current, ok := k.Records.Get(r.Path); !ok || current != r {
		return len(dropped)
	}
	k.totals.Old -= r.Last.size()
	k.Records.Delete(r.Path)
	value, _ := Scatter(r.Last.Key().Path, 1)
	k.scatter.Delete(string(value[:]) + r.Path)
	return len(dropped) + 1
}

// Few reports whether the kind has at most the given numbers of records and indexed values.
func (k *Kind) Few(records, values int) bool {
	if k.Records.Len() > records {
		return false
	}
	k.Records.Scan(func(_ string, r *Record) bool {
		for _, v := range r.versions() {
			values -= v.Indexed()
		}
		return values >= 0
	})
	return values >= 0
}

// Indexed reports whether the index with a definition exists.
func (k *Kind) Indexed(d Definition) bool { return k.index(d) != nil }

func (k *Kind) index(d Definition) *index {
	if i := slices.IndexFunc(k.indexes, func(idx *index) bool { return slices.Equal(idx.definition, d) }); i >= 0 {
		return k.indexes[i]
	}
	return nil
}

// drop drops the indexes for which the function which returns true.
func (k *Kind) drop(which func(*index) bool) {
	k.indexes = slices.DeleteFunc(k.indexes, func(idx *index) bool {
		if which(idx) {
			k.totals.Indexes -= idx.bytes
			return true
		}
		return false
	})
}

// DropUnused drops one index of the given kinds to free memory, and reports whether it did. It
// never drops an index that a query uses, or the index that was used last.
//
// It drops the least recently used index if queries have used other indexes many times since.
// Otherwise it drops a random one. Queries may use slightly more indexes, in turn, than fit into
// memory. Then the least recently used index is the next one needed, so dropping it each time would
// be the worst choice.
func DropUnused(t *Totals, kinds func(yield func(*Kind) bool)) bool {
	var of, ofOldest *Kind
	var chosen, oldest *index
	n, candidates := 0, 0
	for k := range kinds {
		for _, idx := range k.indexes {
			if n++; idx.held > 0 || idx.used == t.uses {
				continue
			}
			if oldest == nil || idx.used < oldest.used {
				ofOldest, oldest = k, idx
			}
			if candidates++; rand.IntN(candidates) == 0 {
				of, chosen = k, idx
			}
		}
	}
	const times = 16
	switch {
	case oldest == nil:
		return false
	case t.uses-oldest.used > int64(times*n):
		of, chosen = ofOldest, oldest
	}
	of.drop(func(idx *index) bool { return idx == chosen })
	return true
}
