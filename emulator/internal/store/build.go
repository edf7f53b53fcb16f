package store

import (
	"slices"

	"github.com/scattermap/scattermap/emulator/internal/entity"
)

// A Build makes an index while others read and write the kind. It takes the versions
// of some records at a time, from the lowest key upwards, with the database locked,
// and makes their entries without the lock. What is written or dropped meanwhile of
// records that it has taken, it notes, and does after that: in the end the index has
// what one has that was there all the time. Nobody scans it before.
type Build struct {
	Done chan struct{} // closed once the index is there, or given up

	kind    *Kind
	index   *index
	taken   string // the greatest key whose record was taken
	all     bool   // all were
	batch   []update
	noted   []update
	repeats int
}

// An update is a version that an index has to add or remove.
type update struct {
	record *Record
	form   entity.Form
	remove bool
}

const (
	takeAtOnce = 64 // versions
	restEvery  = 24
	fewUpdates = 32  // are done with the database locked
	maxRepeats = 100 // then all are, lest a stream of writes holds up the build for ever
)

// Build begins to build an index. The database is locked.
func (k *Kind) Build(d Definition) *Build {
	b := &Build{Done: make(chan struct{}), kind: k, index: &index{definition: d, names: d.names()}}
	k.builds = append(k.builds, b)
	return b
}

// Building returns the build of an index that is under way, or nil.
func (k *Kind) Building(d Definition) *Build {
	if i := slices.IndexFunc(k.builds, func(b *Build) bool { return slices.Equal(b.index.definition, d) }); i >= 0 {
		return k.builds[i]
	}
	return nil
}

// Next takes what [Build.Work] does next, or puts the index in place, and returns
// false then. The database is locked.
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

// Work makes the entries of what was taken, and rests in between. It needs no lock.
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

// End ends a build, which is given up if its index is not in place. The database is
// locked.
func (b *Build) End() {
	b.kind.builds = slices.DeleteFunc(b.kind.builds, func(other *Build) bool { return other == b })
	close(b.Done)
}

// note notes a change of a record, if the record was taken already.
func (b *Build) note(r *Record, u update) {
	if b.all || r.Path <= b.taken {
		b.noted = append(b.noted, u)
	}
}
