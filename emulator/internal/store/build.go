package store

import (
	"slices"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Build makes an index while others read and write the kind. With the database locked it takes
// the versions of some records, in key order. It makes their entries without the lock. If a record
// that was taken changes meanwhile, the change is noted and applied later. In the end the index
// equals one that has existed all the time. No query scans it before.
type Build struct {
	Done chan struct{} // closed when the index is in place, or the build has ended without it

	kind    *Kind
	index   *index
	taken   string // greatest key whose record was taken
	all     bool   // all records were taken
	batch   []update
	noted   []update
	repeats int
}

// An update is a version to add to an index, or to remove from it.
type update struct {
	record *Record
	form   entity.Form
	remove bool
}

const (
	takeAtOnce = 64 // versions
	restEvery  = 24
	fewUpdates = 32  // up to this number of updates are applied with the database locked
	maxRepeats = 100 // after this number of rounds all are, so that steady writes can't delay the build for ever
)

// Build starts the build of an index. The caller has locked the database.
func (k *Kind) Build(d Definition) *Build {
	b := &Build{Done: make(chan struct{}), kind: k, index: &index{definition: d, names: d.names()}}
	k.builds = append(k.builds, b)
	return b
}

// Building returns the running build of an index, or nil.
func (k *Kind) Building(d Definition) *Build {
	if i := slices.IndexFunc(k.builds, func(b *Build) bool { return slices.Equal(b.index.definition, d) }); i >= 0 {
		return k.builds[i]
	}
	return nil
}

// Next takes the work for the next call of [Build.Work], or puts the index in place and returns
// false. The caller has locked the database.
func (b *Build) Next() bool {
	b.batch = b.batch[:0]
	if !b.all {
		b.all = true
		b.kind.Records.Ascend(b.taken, func(path string, r *Record) bool {
			switch {
			case path == b.taken:
				return true
			case len(b.batch) >= takeAtOnce:
				b.all = false
				return false
			}
			b.taken = path
			for _, v := range r.versions() {
				b.batch = append(b.batch, update{record: r, form: v.Form})
			}
			return true
		})
		return true
	}
	b.batch, b.noted = b.noted, b.batch
	if b.repeats++; len(b.batch) > fewUpdates && b.repeats < maxRepeats {
		return true
	}
	b.Work(func() {})
	b.index.upkeep = 0
	b.kind.indexes = append(b.kind.indexes, b.index)
	b.kind.totals.Indexes += b.index.bytes
	b.kind.totals.use(b.index)
	b.End()
	return false
}

// Work makes the entries of the taken records, and rests in between. It needs no lock.
func (b *Build) Work(rest func()) {
	for i, u := range b.batch {
		if i%restEvery == restEvery-1 {
			rest()
		}
		properties := u.form.Some(b.index.names.Read)
		if u.remove {
			b.index.remove(u.record, properties)
		} else {
			b.index.add(u.record, properties)
		}
	}
	clear(b.batch)
}

// End ends a build. If its index is not in place, the kind stays without it. The caller has locked
// the database.
func (b *Build) End() {
	b.kind.builds = slices.DeleteFunc(b.kind.builds, func(other *Build) bool { return other == b })
	close(b.Done)
}

// note stores a change of a record that was already taken, to be applied later.
func (b *Build) note(r *Record, u update) {
	if b.all || r.Path <= b.taken {
		b.noted = append(b.noted, u)
	}
}
