package dsemu

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A kind holds the records of one kind in one namespace. Its maps are in the
// order of their keys, so that every scan starts where its range does.
type kind struct {
	name    string
	records btree.Map[string, *record] // by ordered key
	scatter btree.Map[string, *record] // by scatter value and ordered key
	indexes []*index                   // built when first asked for; the one used last comes last
}

// put adds a version to the record at key, which may be new.
func (k *kind) put(key model.Key, v version, proportion int) *record {
	r, ok := k.records.Get(key.Path)
	if !ok {
		r = &record{path: key.Path, last: v}
		k.records.Set(r.path, r)
		if value, ok := scatter(key.PB.Path, proportion); ok {
			k.scatter.Set(string(value[:])+r.path, r)
		}
	} else {
		r.add(v)
	}
	if !v.deleted && len(k.indexes) > 0 {
		properties := v.Properties()
		for _, idx := range k.indexes {
			idx.add(r, properties)
		}
	}
	return r
}

// prune drops what no read at or after horizon sees: old versions with their
// index entries, and the record itself if it is deleted.
func (k *kind) prune(r *record, horizon int64) {
	for _, v := range r.prune(horizon) {
		if v.deleted || len(k.indexes) == 0 {
			continue
		}
		properties := v.Properties()
		for _, idx := range k.indexes {
			idx.remove(r, properties)
		}
	}
	if len(r.older) > 0 || !r.last.deleted {
		return
	}
	if current, ok := k.records.Get(r.path); !ok || current != r {
		return
	}
	k.records.Delete(r.path)
	value, _ := scatter(r.last.Key().Path, 1)
	k.scatter.Delete(string(value[:]) + r.path)
}

// maxIndexes bounds what is kept for queries that were asked once.
const maxIndexes = 32

// index returns the index of a definition, and builds it if it is not there.
func (k *kind) index(d definition) *index {
	if i := slices.IndexFunc(k.indexes, func(idx *index) bool { return slices.Equal(idx.definition, d) }); i >= 0 {
		idx := k.indexes[i]
		k.indexes = append(slices.Delete(k.indexes, i, i+1), idx)
		return idx
	}
	if len(k.indexes) == maxIndexes {
		k.indexes = slices.Delete(k.indexes, 0, 1)
	}
	idx := &index{definition: d}
	k.records.Scan(func(_ string, r *record) bool {
		for _, v := range r.versions() {
			idx.add(r, v.Properties())
		}
		return true
	})
	k.indexes = append(k.indexes, idx)
	return idx
}
