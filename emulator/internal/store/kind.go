package store

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Kind holds the records of one kind in one namespace. Its maps are in the
// order of their keys, so that every scan starts where its range does.
type Kind struct {
	Name    string
	Records btree.Map[string, *Record] // by ordered key
	scatter btree.Map[string, *Record] // by scatter value and ordered key
	indexes []*index                   // built when first asked for; the one used last comes last
}

// Put adds a version to the record at key, which may be new.
func (k *Kind) Put(key model.Key, v Version, proportion int) *Record {
	r, ok := k.Records.Get(key.Path)
	if !ok {
		r = &Record{Path: key.Path, Last: v}
		k.Records.Set(r.Path, r)
		if value, ok := Scatter(key.PB.Path, proportion); ok {
			k.scatter.Set(string(value[:])+r.Path, r)
		}
	} else {
		r.add(v)
	}
	if !v.Deleted && len(k.indexes) > 0 {
		properties := v.Properties()
		for _, idx := range k.indexes {
			idx.add(r, properties)
		}
	}
	return r
}

// Prune drops what no read at or after horizon sees: old versions with their
// index entries, and the record itself if it is deleted.
func (k *Kind) Prune(r *Record, horizon int64) {
	for _, v := range r.prune(horizon) {
		if v.Deleted || len(k.indexes) == 0 {
			continue
		}
		properties := v.Properties()
		for _, idx := range k.indexes {
			idx.remove(r, properties)
		}
	}
	if len(r.older) > 0 || !r.Last.Deleted {
		return
	}
	if current, ok := k.Records.Get(r.Path); !ok || current != r {
		return
	}
	k.Records.Delete(r.Path)
	value, _ := Scatter(r.Last.Key().Path, 1)
	k.scatter.Delete(string(value[:]) + r.Path)
}

// maxIndexes bounds what is kept for queries that were asked once.
const maxIndexes = 32

// index returns the index of a definition, and builds it if it is not there.
func (k *Kind) index(d Definition) *index {
	if i := slices.IndexFunc(k.indexes, func(idx *index) bool { return slices.Equal(idx.definition, d) }); i >= 0 {
		idx := k.indexes[i]
		k.indexes = append(slices.Delete(k.indexes, i, i+1), idx)
		return idx
	}
	if len(k.indexes) == maxIndexes {
		k.indexes = slices.Delete(k.indexes, 0, 1)
	}
	idx := &index{definition: d}
	k.Records.Scan(func(_ string, r *Record) bool {
		for _, v := range r.versions() {
			idx.add(r, v.Properties())
		}
		return true
	})
	k.indexes = append(k.indexes, idx)
	return idx
}
