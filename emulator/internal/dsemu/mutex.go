package dsemu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A mutex is a mutex that a long scan can give to waiting callers for a moment.
type mutex struct {
	sync.Mutex
	waiting atomic.Int32
	locked  atomic.Int64 // how often it was locked
}

func (m *mutex) Lock() {
	m.locked.Add(1)
	if m.TryLock() {
		return
	}
	m.waiting.Add(1)
	m.Mutex.Lock()
	m.waiting.Add(-1)
}

// Wanted reports whether a caller waits for the mutex.
func (m *mutex) Wanted() bool { return m.waiting.Load() > 0 }

// Pause unlocks the mutex for others, and locks it again. Without the loop this goroutine would
// mostly be the next to lock it.
func (m *mutex) Pause() {
	const tries = 200
	n := m.waiting.Load()
	m.Unlock()
	for i := 0; i < tries && n > 0 && m.waiting.Load() >= n; i++ {
		runtime.Gosched()
	}
	m.Lock()
}
