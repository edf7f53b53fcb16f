package store

import "github.com/tidwall/btree"

// An Iterator goes over a map of records, or over an index. After a write it has to be renewed, and
// to seek again.
type Iterator interface {
	Seek(key string) bool // goes to the first key at or above key
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

// Keys goes over the records of a kind in key order.
func (k *Kind) Keys() Iterator { return &keyIterator{k.Records.Iter(), &k.Records} }

// Scattered goes over the records that have __scatter__, in its order.
func (k *Kind) Scattered() Iterator { return &keyIterator{k.scatter.Iter(), &k.scatter} }

// Hold prevents an index from being dropped until the caller calls let. If an entity does not fit
// into it, Hold also returns that entity's number of values of each of the definition's properties.
func (k *Kind) Hold(d Definition) (let func(), counts []int) {
	idx := k.index(d)
	k.totals.use(idx)
	idx.held++
	if idx.excess > 0 {
		counts = idx.counts
	}
	return func() { idx.held-- }, counts
}

// Entries goes over the entries of an index. The index is kept until the iterator is closed. A
// missing index is built at once.
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
