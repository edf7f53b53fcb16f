package dsemu

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"
)

// A kind holds the records of one kind in one namespace. Its maps are in the
// order of their keys, so that every scan starts where its range does.
type kind struct {
	name    string
	records btree.Map[string, *record] // by ordered key
	scatter btree.Map[string, *record] // by scatter value and ordered key
	indexes map[string]*index          // by property, built when first asked for
}

// An index has an entry for each value that any kept version of a record has
// or had; a scan looks at the version that it sees.
type index struct {
	entries btree.Map[string, *record] // by ordered value and ordered key
}

// put adds a version to the record at key, which may be new.
func (k *kind) put(key storedKey, v version, proportion int) *record {
	r, ok := k.records.Get(key.path)
	if !ok {
		r = &record{path: key.path, last: v}
		k.records.Set(r.path, r)
		if value, ok := scatter(key.pb.Path, proportion); ok {
			k.scatter.Set(string(value[:])+r.path, r)
		}
	} else {
		r.add(v)
	}
	if !v.deleted && len(k.indexes) > 0 {
		properties := v.properties()
		for property, idx := range k.indexes {
			for _, form := range indexed(properties[property]) {
				idx.entries.Set(string(form)+r.path, r)
			}
		}
	}
	return r
}

// prune drops what no read at or after horizon sees: old versions with their
// index entries, and the record itself if it is deleted.
func (k *kind) prune(r *record, horizon int64) {
	dropped := r.prune(horizon)
	if len(dropped) > 0 && len(k.indexes) > 0 {
		k.pruneIndexes(r, dropped)
	}
	if len(r.older) > 0 || !r.last.deleted {
		return
	}
	if current, ok := k.records.Get(r.path); !ok || current != r {
		return
	}
	k.records.Delete(r.path)
	value, _ := scatter(r.last.key().Path, 1)
	k.scatter.Delete(string(value[:]) + r.path)
}

func (k *kind) pruneIndexes(r *record, dropped []version) {
	var kept []map[string]*pb.Value
	for _, v := range append([]version{r.last}, r.older...) {
		if !v.deleted {
			kept = append(kept, v.properties())
		}
	}
	for _, v := range dropped {
		if v.deleted {
			continue
		}
		properties := v.properties()
		for property, idx := range k.indexes {
			still := make(map[string]bool)
			for _, p := range kept {
				for _, form := range indexed(p[property]) {
					still[string(form)] = true
				}
			}
			for _, form := range indexed(properties[property]) {
				if !still[string(form)] {
					idx.entries.Delete(string(form) + r.path)
				}
			}
		}
	}
}

// index returns the index of a property, or nil if it is not built.
func (k *kind) index(property string) *index { return k.indexes[property] }

// buildIndex reads all kept versions once.
func (k *kind) buildIndex(property string) {
	if k.indexes[property] != nil {
		return
	}
	idx := new(index)
	k.records.Scan(func(_ string, r *record) bool {
		for _, v := range append([]version{r.last}, r.older...) {
			if v.deleted {
				continue
			}
			for _, form := range indexed(v.properties()[property]) {
				idx.entries.Set(string(form)+r.path, r)
			}
		}
		return true
	})
	if k.indexes == nil {
		k.indexes = make(map[string]*index)
	}
	k.indexes[property] = idx
}
