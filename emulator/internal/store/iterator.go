package store

import "github.com/tidwall/btree"

// An Iterator goes over a map of records, or over an index. When something was
// written it has to be renewed, and to seek again.
type Iterator interface {
	Seek(key string) bool // to the first at or above it
	Last() bool
	Next() bool
	Prev() bool
	Key() string
	Record() *Record
	Renew()
	Close()
}

type keyIterator struct {
	btree.MapIter[string, *Record]
	of *btree.Map[string, *Record]
}

func (i *keyIterator) Record() *Record { return i.Value() }
func (i *keyIterator) Renew()          { i.MapIter = i.of.Iter() }
func (i *keyIterator) Close()          {}

type entryIterator struct {
	btree.MapIter[string, entry]
	of *index
}

func (i *entryIterator) Record() *Record { return i.Value().record }
func (i *entryIterator) Renew()          { i.MapIter = i.of.entries.Iter() }
func (i *entryIterator) Close()          { i.of.held-- }

// Keys goes over the records of a kind in the order of their keys.
func (k *Kind) Keys() Iterator { return &keyIterator{k.Records.Iter(), &k.Records} }

// Scattered goes over those that have __scatter__, in its order.
func (k *Kind) Scattered() Iterator { return &keyIterator{k.scatter.Iter(), &k.scatter} }

// Hold has an index stay until it is let go. If an entity does not fit into it, it also returns
// how many values such an entity has of each of the definition's properties.
func (k *Kind) Hold(d Definition) (let func(), counts []int) {
	idx := k.index(d)
	k.totals.use(idx)
	idx.held++
	if idx.excess > 0 {
		counts = idx.counts
	}
	return func() { idx.held-- }, counts
}

// Entries goes over the entries of an index, which stays until the iterator is
// closed. An index that is not there is built at once.
func (k *Kind) Entries(d Definition) Iterator {
	idx := k.index(d)
	if idx == nil {
		b := k.Build(d)
		for b.Next() {
			b.Work(func() {})
		}
		idx = b.index
	}
	k.totals.use(idx)
	idx.held++
	return &entryIterator{idx.entries.Iter(), idx}
}
