package pace

import "sync"

// An Optimism says whether pages should be optimistic: read ahead, and committed on the condition that nobody has changed
// what they have read since. A page that has lost is done once more, in a transaction. So after a page that has lost some
// go without trying, and twice as many after each further one, until one wins. Its zero value is optimistic. It is for
// several goroutines.
type Optimism struct {
	mu   sync.Mutex
	wary int // how many pages go without trying after the next one that loses, less one
	left int // of those
}

// mostWary bounds how many pages go without trying.
const mostWary = 63

// Hopes reports whether the next page should be optimistic.
func (o *Optimism) Hopes() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left > 0 {
		o.left--
		return false
	}
	return true
}

// Ended notes how an optimistic page has ended.
func (o *Optimism) Ended(won bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if won {
		o.wary, o.left = 0, 0
		return
	}
	o.left = o.wary + 1
	o.wary = min(mostWary, 2*o.wary+1)
}
