package dsemu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A mutex is a mutex whose holder can see that callers wait, and let them in for a moment. A long
// scan does so.
type mutex struct {
	sync.Mutex
	waiting atomic.Int32
	locked  atomic.Int64 // number of times that the mutex was locked
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

// Pause unlocks the mutex until a waiting caller has locked it, and then locks it again. It yields
// the processor in a loop: otherwise this goroutine would mostly be the next to lock the mutex.
func (m *mutex) Pause() {
	const tries = 200
	n := m.waiting.Load()
	m.Unlock()
	for i := 0; i < tries && n > 0 && m.waiting.Load() >= n; i++ {
		runtime.Gosched()
	}
	m.Lock()
}
