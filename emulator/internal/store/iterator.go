package store

import "github.com/tidwall/btree"

// An Iterator goes through a map of records, or through an index. After a write to the map, the
// caller must renew it and seek again.
type Iterator interface {
	Seek(key string) bool // moves to the first key that is equal to or above key
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

// Keys returns an iterator over the records of a kind in key order.
func (k *Kind) Keys() Iterator { return &keyIterator{k.Records.Iter(), &k.Records} }

// Scattered returns an iterator over the records that have __scatter__, in its order.
func (k *Kind) Scattered() Iterator { return &keyIterator{k.scatter.Iter(), &k.scatter} }

// Hold prevents an index from being dropped until the caller calls the function let, which Hold
// returns. If an entity has too many entries for the index, Hold also returns counts: this entity's
// numbers of values for the definition's properties.
func (k *Kind) Hold(d Definition) (let func(), counts []int) {
	idx := k.index(d)
	k.totals.use(idx)
	idx.held++
	if idx.excess > 0 {
		counts = idx.counts
	}
	return func() { idx.held-- }, counts
}

// Entries returns an iterator over the entries of an index. If the index does not exist, it is
// first built. It is not dropped until the iterator is closed.
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
