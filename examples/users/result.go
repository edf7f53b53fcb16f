package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/scattermap/scattermap/mapper/picture"
)

// An outcome is the result of the job in one form.
type outcome struct {
	Over    string  `json:"over"`
	Form    string  `json:"form"`
	Seconds float64 `json:"seconds"`
	Ratio   float64 `json:"ratio"`   // the job's time as a multiple of the adaptive form's time in the same order
	Active  int64   `json:"active"`  // number of users in the job's query
	Checked int64   `json:"checked"` // number of users that the job has checked
	Invalid int64   `json:"invalid"` // number of checked users with invalid data
	// number of active users without the order's property; the job's query does not find them
	Without int64 `json:"without"`
	// the depth of the tree of tasks: the length of its longest chain of tasks, each created by the
	// one before
	Depth  int   `json:"depth"`
	Tasks  int64 `json:"tasks"`
	Pages  int64 `json:"pages"`
	Reads  int64 `json:"reads"`  // number of billed reads
	Writes int64 `json:"writes"` // number of billed writes

	levels  []level
	sampled bool // whether the levels are estimated from a sample
}

type result struct {
	Users    int       `json:"users"`
	Outcomes []outcome `json:"forms"`
	Tree     []level   `json:"tree"`    // the tree of tasks of "page, then ten" over random IDs
	Sampled  bool      `json:"sampled"` // whether the tree is estimated from a sample of its tasks
	Offsets  offsets   `json:"offsets"`
}

// A level has the numbers of the tasks at one depth of the tree of tasks.
type level struct {
	Depth  int64   `json:"depth"`
	Ranges float64 `json:"ranges"`
	Users  float64 `json:"users"`
	From   float64 `json:"from"`  // when its first task was created, in seconds from the job's start
	Until  float64 `json:"until"` // when its last page was committed, in seconds from the job's start
}

// levelsOf returns the levels of the tree of a job's tasks.
func levelsOf(p *picture.Picture) (all []level) {
	for _, l := range p.Levels() {
		all = append(all, level{Depth: l.Depth, Ranges: l.Ranges, Users: l.Entities})
	}
	for _, r := range p.Ranges {
		if r.Alone || r.Done.IsZero() {
			continue
		}
		l := &all[min(int(r.Depth), len(all)-1)]
		from, until := r.Created.Sub(p.Begun).Seconds(), r.Done.Sub(p.Begun).Seconds()
		if l.Until == 0 || from < l.From {
			l.From = from
		}
		l.Until = max(l.Until, until)
	}
	return all
}

// add adds the outcome of a form to the result. It calculates the ratio to the adaptive form in the
// same order.
func (r *result) add(o outcome) {
	r.Outcomes = append(r.Outcomes, o)
	last := &r.Outcomes[len(r.Outcomes)-1]
	for _, other := range r.Outcomes {
		if other.Form == adaptiveName && other.Over == o.Over {
			last.Ratio = o.Seconds / other.Seconds
		}
	}
	if o.Form == inTenName && o.Over == byUserID.name {
		r.Tree, r.Sampled = o.levels, o.sampled
	}
}

const heading = `Each form checks each active user once, and no other: they are read back.

over        form            seconds  times  depth  tasks  pages   reads  writes
`

// row returns a line of text about the outcome of the i-th form.
func (r *result) row(i int) string {
	o, over := r.Outcomes[i], r.Outcomes[i].Over
	if i > 0 && r.Outcomes[i-1].Over == over {
		over = ""
	}
	return fmt.Sprintf("%-10s  %-14s  %7.2f  %5.2f  %5d  %5d  %5d  %6d  %6d\n", over, o.Form, o.Seconds, o.Ratio,
		o.Depth, o.Tasks, o.Pages, o.Reads, o.Writes)
}

// barWide is the width, in characters, of a bar for the time of the whole job.
const barWide = 40

// tree returns a drawing of the tree of tasks. For each depth, a bar shows from left to right when
// its tasks worked.
func (r *result) tree() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe tree of %q over random ids, in seconds from the job's start:\n\n", inTenName)
	b.WriteString("depth   tasks   users    from   until\n")
	end := 0.0
	for _, l := range r.Tree {
		end = max(end, l.Until)
	}
	for _, l := range r.Tree {
		from, until := 0, barWide
		if end > 0 {
			from, until = int(barWide*l.From/end), int(math.Ceil(barWide*l.Until/end))
		}
		from = min(from, barWide-1)
		bar := strings.Repeat(" ", from) + strings.Repeat("█", max(1, until-from))
		fmt.Fprintf(&b, "%5d  %6.0f  %6.0f  %6.2f  %6.2f  %s\n", l.Depth, l.Ranges, l.Users, l.From, l.Until, bar)
	}
	if r.Sampled {
		b.WriteString("\nThat is estimated by some of its tasks: there are too many to read all.\n")
	}
	return b.String()
}
