package observe

import "sync"

// waiters has a channel for each caller that waits until this process changes the state of a job.
type waiters struct {
	mu  sync.Mutex
	all map[string]map[chan struct{}]bool // the callers' channels, by the ID of the job
}

// Awaits returns a channel that is closed when this process changes the state of the job with this
// ID. The caller must call stop when it no longer waits. For a nil Observer, the channel is never
// closed.
func (ob *Observer) Awaits(job string) (changed <-chan struct{}, stop func()) {
	if ob == nil {
		return nil, func() {}
	}
	w, c := &ob.waiters, make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[string]map[chan struct{}]bool)
	}
	if w.all[job] == nil {
		w.all[job] = make(map[chan struct{}]bool)
	}
	w.all[job][c] = true
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.all[job], c); len(w.all[job]) == 0 {
			delete(w.all, job)
		}
	}
}

// wake closes the channels of all callers that wait for a change of the job with this ID.
func (w *waiters) wake(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all[job] {
		close(c)
	}
	delete(w.all, job)
}
