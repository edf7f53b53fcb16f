package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// An ID identifies a comment. A process draws it without a call to a server. It contains the time
// and the shard. It has 43 bits of milliseconds since Epoch, 3 bits of the physical shard, 7 of the
// logical one, and 11 of a sequence. The highest bit is 0 until 2159, so until then IDs are
// positive.
type ID int64

const (
	sequenceBits = 11
	logicalBits  = 7
	physicalBits = 3
	timeBits     = 43

	// Numbers of shards that IDs can tell apart.
	MaxPhysical = 1 << physicalBits
	MaxLogical  = 1 << logicalBits
	sequences   = 1 << sequenceBits
	times       = 1 << (timeBits - 1)
)

// Epoch is the time of the first possible ID.
var Epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func newID(ms int64, physical, logical int, sequence int64) ID {
	return ID(((ms<<physicalBits|int64(physical))<<logicalBits|int64(logical))<<sequenceBits | sequence)
}

// Time returns the time at which the ID was drawn, in milliseconds.
func (id ID) Time() time.Time {
	return Epoch.Add(time.Duration(id>>(sequenceBits+logicalBits+physicalBits)) * time.Millisecond)
}

// Physical returns the number of the database that has the comment.
func (id ID) Physical() int { return int(id>>(sequenceBits+logicalBits)) % MaxPhysical }

// Logical returns the logical shard that the comment was in when the ID was drawn.
func (id ID) Logical() int { return int(id>>sequenceBits) % MaxLogical }

// Sequence returns the ID's number among the IDs of one millisecond and shard in one process.
func (id ID) Sequence() int { return int(id) % sequences }

// A Generator draws the IDs of one shard in one process. They always increase, even if the clock is
// set back. Another process may draw the same IDs, so an insert must require that its key is new.
type Generator struct {
	physical, logical int
	now               func() time.Time

	mu    sync.Mutex
	last  int64 // the time of the last ID, in milliseconds
	next  int64 // the next number of the sequence
	given map[int64]*run
}

// A run is the numbers that a generator has drawn for one time that the caller has chosen.
type run struct{ first, drawn int64 }

// maxRuns is the number of times chosen by callers for which a generator remembers its run.
const maxRuns = 10_000

// NewGenerator returns a generator of IDs for a logical shard in the database with the number
// physical. It returns an error if one of the two numbers is out of range.
func NewGenerator(physical, logical int) (*Generator, error) {
	if physical < 0 || physical >= MaxPhysical || logical < 0 || logical >= MaxLogical {
		return nil, fmt.Errorf("there are no ids for shard %d of %d in database %d of %d", logical, MaxLogical,
			physical,
			MaxPhysical)
	}
	return &Generator{physical: physical, logical: logical, now: time.Now}, nil
}

// tolerance is the longest time for which a generator waits after its clock was set back. After a
// larger step it does not wait, and its IDs have later times than the clock.
const tolerance = time.Second

// Next draws an ID. If no numbers are left, it waits for the next millisecond. It returns an error
// if the clock is before the first ID or after the last one.
func (g *Generator) Next(ctx context.Context) (ID, error) {
	for {
		id, wait, err := g.draw()
		if wait == 0 {
			return id, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// draw draws an ID. If all numbers of the millisecond are used, it returns how long to wait.
func (g *Generator) draw() (ID, time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := g.now().Sub(Epoch)
	ms := since.Milliseconds()
	switch {
	case ms < 1 || ms >= times:
		return 0, 0, fmt.Errorf("there are no ids at %v, only between %v and %v: is the clock right?",
			g.now().UTC().Format(time.RFC3339), Epoch.Format(time.DateOnly),
			Epoch.Add(times*time.Millisecond).Format(time.DateOnly))
	case ms > g.last:
		g.last, g.next = ms, 0
	case g.next < sequences: // the millisecond of the last ID, or the clock was set back
	case time.Duration(g.last-ms)*time.Millisecond > tolerance:
		g.last, g.next = g.last+1, 0
	default:
		return 0, time.Duration(g.last+1)*time.Millisecond - since, nil
	}
	id := newID(g.last, g.physical, g.logical, g.next)
	g.next++
	return id, 0, nil
}

// At draws an ID for a time that the caller chooses. The sequence numbers of the IDs for one time
// start at a random number, because other processes may draw IDs for the same time.
func (g *Generator) At(t time.Time) (ID, error) {
	since := t.Sub(Epoch)
	ms := since.Milliseconds()
	if since < time.Millisecond || ms >= times {
		return 0, fmt.Errorf("there are no IDs of %v, only between %v and %v", t.UTC().Format(time.RFC3339Nano),
			Epoch.Format(time.DateOnly), Epoch.Add(times*time.Millisecond).Format(time.DateOnly))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.given) >= maxRuns || g.given == nil {
		g.given = make(map[int64]*run)
	}
	r := g.given[ms]
	if r == nil {
		r = &run{first: rand.Int64N(sequences)}
		g.given[ms] = r
	}
	if r.drawn == sequences {
		delete(g.given, ms)
		return 0, fmt.Errorf("all %d IDs of logical shard %d at %v are taken: give another time", sequences, g.logical,
			t.UTC().Format(time.RFC3339Nano))
	}
	r.drawn++
	return newID(ms, g.physical, g.logical, (r.first+r.drawn-1)%sequences), nil
}
