package store

import "github.com/tidwall/btree"

// An Iterator goes over a map of records, or over an index.
type Iterator interface {
	Seek(key string) bool // to the first at or above it
	Last() bool
	Next() bool
	Prev() bool
	Key() string
	Record() *Record
}

type keyIterator struct{ btree.MapIter[string, *Record] }

func (i *keyIterator) Record() *Record { return i.Value() }

type entryIterator struct{ btree.MapIter[string, entry] }

func (i *entryIterator) Record() *Record { return i.Value().record }

// Keys goes over the records of a kind in the order of their keys.
func (k *Kind) Keys() Iterator { return &keyIterator{k.Records.Iter()} }

// Scattered goes over those that have __scatter__, in its order.
func (k *Kind) Scattered() Iterator { return &keyIterator{k.scatter.Iter()} }

// Entries goes over the entries of an index.
func (k *Kind) Entries(d Definition) Iterator {
	return &entryIterator{k.index(d).entries.Iter()}
}
