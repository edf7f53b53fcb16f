package mapper

import (
	"fmt"
	"maps"
	"unicode/utf8"
)

// Bounds of counters, which keep every record small.
const (
	maxCounters    = 100
	maxCounterName = 100 // bytes
)

// counters add up by name.
type counters map[string]int64

var errTooManyCounters = fmt.Errorf("a job has at most %d counters", maxCounters)

func (c *counters) add(name string, n int64) error {
	switch {
	case name == "" || len(name) > maxCounterName || !utf8.ValidString(name):
		return fmt.Errorf("the counter name %q is empty, longer than %d bytes or not UTF-8", name, maxCounterName)
	case *c == nil:
		*c = make(counters)
	}
	if _, ok := (*c)[name]; !ok && len(*c) == maxCounters {
		return errTooManyCounters
	}
	(*c)[name] += n
	return nil
}

func (c counters) clone() counters { return maps.Clone(c) }

// merge adds other to c. After an error c is to be thrown away.
func (c *counters) merge(other counters) error {
	for name, n := range other {
		if err := c.add(name, n); err != nil {
			return err
		}
	}
	return nil
}

// otherCounters is where the counters of a job go that has too many names.
const otherCounters = "(others)"

// sum adds other to c, whatever their number: pages stay below the limit each,
// and a job of many pages may not. What is above it is added up as one.
func (c *counters) sum(other counters) {
	for name, n := range other {
		if *c == nil {
			*c = make(counters)
		}
		if _, known := (*c)[name]; !known && len(*c) >= maxCounters {
			name = otherCounters
		}
		(*c)[name] += n
	}
}
