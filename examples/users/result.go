package main

import (
	"fmt"
	"strings"

	"github.com/scattermap/scattermap/mapper/picture"
)

// An outcome is what one form did.
type outcome struct {
	Over    string  `json:"over"`
	Form    string  `json:"form"`
	Seconds float64 `json:"seconds"`
	Ratio   float64 `json:"ratio"`   // of the seconds of the adaptive form over the same
	Active  int64   `json:"active"`  // users whom the job is over
	Checked int64   `json:"checked"` // users, as the job says
	Invalid int64   `json:"invalid"` // of them, whose data is not in order
	Without int64   `json:"without"` // active users without the property, whom the job does not see
	Depth   int     `json:"depth"`   // of the tree: how many times a task made the next one
	Tasks   int64   `json:"tasks"`
	Pages   int64   `json:"pages"`
	Reads   int64   `json:"reads"`  // billed
	Writes  int64   `json:"writes"` // billed

	levels []picture.Level
}

type result struct {
	Users    int       `json:"users"`
	Outcomes []outcome `json:"forms"`
	Tree     []level   `json:"tree"` // of "page, then ten" over random ids
	Offsets  offsets   `json:"offsets"`
}

// A level is a depth of a tree.
type level struct {
	Depth  int64   `json:"depth"`
	Ranges float64 `json:"ranges"`
	Users  float64 `json:"users"`
}

// add adds an outcome, compared with the adaptive one over the same.
func (r *result) add(o outcome) {
	r.Outcomes = append(r.Outcomes, o)
	last := &r.Outcomes[len(r.Outcomes)-1]
	for _, other := range r.Outcomes {
		if other.Form == adaptiveName && other.Over == o.Over {
			last.Ratio = o.Seconds / other.Seconds
		}
	}
	if o.Form == inTenName && o.Over == byUserID.name {
		for _, l := range o.levels {
			r.Tree = append(r.Tree, level{l.Depth, l.Ranges, l.Entities})
		}
	}
}

const heading = `Each form checks each active user once, and no other. They are read back to see that.

over        form            seconds  times  depth  tasks  pages   reads  writes
`

// row says what the i-th form did.
func (r *result) row(i int) string {
	o, over := r.Outcomes[i], r.Outcomes[i].Over
	if i > 0 && r.Outcomes[i-1].Over == over {
		over = ""
	}
	return fmt.Sprintf("%-10s  %-14s  %7.2f  %5.2f  %5d  %5d  %5d  %6d  %6d\n", over, o.Form, o.Seconds, o.Ratio, o.Depth, o.Tasks, o.Pages, o.Reads, o.Writes)
}

// tree draws how many users are at each depth.
func (r *result) tree() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe tree of %q over random ids:\n\ndepth   tasks   users\n", inTenName)
	most := 1.0
	for _, l := range r.Tree {
		most = max(most, l.Users)
	}
	for _, l := range r.Tree {
		fmt.Fprintf(&b, "%5d  %6.0f  %6.0f  %s\n", l.Depth, l.Ranges, l.Users, strings.Repeat("█", int(50*l.Users/most)))
	}
	return b.String()
}
