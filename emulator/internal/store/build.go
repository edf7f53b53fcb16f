package store

import (
	"slices"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Build makes an index of a kind while others read and write the kind. Each step takes some
// records, in key order, with the database locked. It then makes their index entries without the
// lock. If a record changes after it was taken, the Build notes the change and applies it later. At
// the end, the index is complete and current. Queries use it only then.
type Build struct {
	Done chan struct{} // closed when the index is complete, or when the build ends early

	kind    *Kind
	index   *index
	taken   string // the greatest key of the records taken so far
	all     bool   // whether all records were taken
	batch   []update
	noted   []update
	repeats int
}

// An update is a version of a record whose entries are to be added to an index, or removed from it.
type update struct {
	record *Record
	form   entity.Form
	remove bool
}

const (
	takeAtOnce = 64 // number of versions that one step takes
	restEvery  = 24
	// if at most this number of updates remain, they are applied with the database locked, and the
	// build ends
	fewUpdates = 32
	// after this number of rounds, all remaining updates are applied with the database locked:
	// otherwise steady writes could delay the build forever
	maxRepeats = 100
)

// Build starts building an index. The caller has locked the database.
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

// Next takes records for the next call of [Build.Work]. If none are left, it adds the index to the
// kind and returns false. The caller has locked the database.
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

// Work makes the index entries of the records that Next has taken. From time to time it calls rest.
// It needs no lock.
func (b *Build) Work(rest func()) {
	for i, u := range b.batch {
		if i%restEvery == restEvery-1 {
			rest()
		}
		properties := u.form.Some(b.index.names.Needs)
		if u.remove {
			b.index.remove(u.record, properties)
		} else {
			b.index.add(u.record, properties)
		}
	}
	clear(b.batch)
}

// End ends a build. If the index is not complete, it is not added to the kind. The caller has
// locked the database.
func (b *Build) End() {
	b.kind.builds = slices.DeleteFunc(b.kind.builds, func(other *Build) bool { return other == b })
	close(b.Done)
}

// note records a change of a record that Next has already taken, so that it is applied later.
func (b *Build) note(r *Record, u update) {
	if b.all || r.Path <= b.taken {
		b.noted = append(b.noted, u)
	}
}
