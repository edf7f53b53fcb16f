package mapper

import (
	"cmp"
	"sync"
	"time"
)

// A pace is what this process has learned of a job's entities.
type pace struct {
	entities, bytes, writes int64
	spent                   time.Duration // on them, by the function
	squares                 float64       // of the seconds that each took
	expected                int64         // bytes of an entity, where none is known; 0: nobody knows
}

// Reading a page is bounded in memory: as many entities at once as are expected
// to take readBytes, which is two full pages of mutations, and firstRead where
// nothing is known: 100 entities of the largest kind, 1 MiB, are still bearable.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// chunk returns how many of the next entities to read at once.
func (p pace) chunk(rest int) int {
	mean := p.expected
	if p.entities > 0 {
		mean = p.bytes/p.entities + 1
	}
	if mean == 0 {
		return min(rest, firstRead)
	}
	return min(rest, int(max(1, readBytes/mean)))
}

// each returns how long the function takes for an entity; 0 is unknown.
func (p pace) each() time.Duration { return p.spent / time.Duration(max(1, p.entities)) }

// uneven reports whether entities take so different times that pages do, too: with a variance
// of five times the square of the mean, pages of 500 differ by a tenth.
func (p pace) uneven() bool {
	n, mean := float64(p.entities), p.each().Seconds()
	return n > 0 && p.squares/n > 6*mean*mean
}

// fit reports whether so many entities can be read at once.
func (p pace) fit(n int) bool { return p.entities+p.expected > 0 && p.chunk(n) == n }

// paces holds the pace of each job that this process has worked for lately.
type paces[Job comparable] struct {
	mu  sync.Mutex
	job map[Job]pace
}

// maxPaces bounds what is remembered; a forgotten job starts over.
const maxPaces = 1000

func (p *paces[Job]) get(job Job) pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.job[job]
}

// writes returns how many writes the function makes for an entity: what it did so far, or
// what is usual.
func (p *paces[Job]) writes(job Job, usual float64) float64 {
	if known := p.get(job); known.entities > 0 {
		return float64(known.writes) / float64(known.entities)
	}
	return usual
}

// add adds what was learned.
func (p *paces[Job]) add(job Job, more pace) {
	p.change(job, func(known *pace) {
		known.entities += more.entities
		known.bytes += more.bytes
		known.writes += more.writes
		known.spent += more.spent
		known.squares += more.squares
	})
}

// expect notes how many bytes an entity has on average; 0 is unknown.
func (p *paces[Job]) expect(job Job, bytes int64) {
	p.change(job, func(known *pace) { known.expected = cmp.Or(known.expected, bytes) })
}

func (p *paces[Job]) change(job Job, f func(*pace)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.job == nil || len(p.job) >= maxPaces {
		p.job = make(map[Job]pace)
	}
	known := p.job[job]
	f(&known)
	p.job[job] = known
}
