// Package recent remembers things by their keys: as many as it may, and those that are in use. It
// forgets those first that were used longest ago.
package recent

// A Map has a value for each of some keys. Its zero value is empty. It is not for several
// goroutines at once.
type Map[K comparable, V any] struct {
	all  map[K]*entry[V]
	uses uint64
}

type entry[V any] struct {
	value V
	used  uint64
}

// Get returns the value of a key, which is used by that, or the zero value.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e := m.all[key]
	if e == nil {
		return value, false
	}
	m.uses++
	e.used = m.uses
	return e.value, true
}

// Peek is Get without use of the key.
func (m *Map[K, V]) Peek(key K) (value V, ok bool) {
	if e := m.all[key]; e != nil {
		return e.value, true
	}
	return value, false
}

// Put sets the value of a key. If there are more than so many then, it forgets those that were used
// longest ago, but none that inUse is true of, if that is not nil, and returns their values.
func (m *Map[K, V]) Put(key K, value V, most int, inUse func(K, V) bool) (forgotten map[K]V) {
	if m.all == nil {
		m.all = make(map[K]*entry[V])
	}
	m.uses++
	m.all[key] = &entry[V]{value, m.uses}
	for len(m.all) > most {
		oldest, found := m.oldest(key, inUse)
		if !found {
			break
		}
		if forgotten == nil {
			forgotten = make(map[K]V)
		}
		forgotten[oldest] = m.all[oldest].value
		delete(m.all, oldest)
	}
	return forgotten
}

// oldest returns the key that was used longest ago and is not in use, and is not another one.
func (m *Map[K, V]) oldest(but K, inUse func(K, V) bool) (oldest K, found bool) {
	for key, e := range m.all {
		if key == but || found && e.used > m.all[oldest].used || inUse != nil && inUse(key, e.value) {
			continue
		}
		oldest, found = key, true
	}
	return oldest, found
}

// All calls f for each key and its value.
func (m *Map[K, V]) All(f func(K, V)) {
	for key, e := range m.all {
		f(key, e.value)
	}
}
