// Package recent has a map of limited size. When the map is full, it removes the keys that were
// used longest ago, except keys that the caller says are in use.
package recent

// A Map is a map of limited size from keys to values. The zero value is empty. Callers must not use
// a Map from several goroutines at the same time.
type Map[K comparable, V any] struct {
	all  map[K]*entry[V]
	uses uint64
}

type entry[V any] struct {
	value V
	used  uint64
}

// Get returns the value of a key, and records that the key was used. The bool ok is false if the
// key is not in the map.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e := m.all[key]
	if e == nil {
		return value, false
	}
	m.uses++
	e.used = m.uses
	return e.value, true
}

// Peek returns the value of a key like [Map.Get], but does not record a use.
func (m *Map[K, V]) Peek(key K) (value V, ok bool) {
	if e := m.all[key]; e != nil {
		return e.value, true
	}
	return value, false
}

// Put sets the value of a key. If the map then has more than most keys, Put removes the keys that
// were used longest ago, and returns them with their values. It does not remove keys for which
// inUse returns true. If inUse is nil, it may remove all keys except the new one.
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

// oldest returns the key that was used longest ago. It leaves out the key that was just added, and
// keys for which inUse returns true. The bool is false if no key remains.
func (m *Map[K, V]) oldest(added K, inUse func(K, V) bool) (oldest K, found bool) {
	for key, e := range m.all {
		if key == added || found && e.used > m.all[oldest].used || inUse != nil && inUse(key, e.value) {
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
