package dashboard

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// Sizes of a miniStrip, in units of its SVG image.
const (
	miniCells  = 100 // number of cells, each one unit wide
	miniHeight = 16
	miniMark   = 6 // height of the mark for failed entities, at the bottom
)

// A miniStrip is the small picture of a job in the list. It has cells in the order of the key
// space, each for the same number of entities.
type miniStrip struct {
	Width, Height int
	Paths         []miniPath
	Says          string // a description of the picture in words
}

// A miniPath draws all cells with the same colour.
type miniPath struct{ Class, D string }

// miniStates are the states that a cell may have, in their order in the description.
var miniStates = []picture.State{picture.Done, picture.Slow, picture.Running, picture.Pending, picture.Failed}

// miniOf returns the strip of a job from its picture and its status. It returns nil if the picture
// has no ranges.
func miniOf(p *picture.Picture, s *mapper.Status) *miniStrip {
	if len(p.Ranges) == 0 {
		return nil
	}
	states, failed := cellsOf(p)
	classes, names := p.Classes(picture.ByState)
	shares := sharesOf(p, classes, len(names), s.Progress)
	var said []string
	for _, state := range miniStates[:len(miniStates)-1] {
		n := 0
		for class, name := range names {
			if name == string(state) {
				n = shares[class]
			}
		}
		if n > 0 || state == picture.Done {
			said = append(said, fmt.Sprintf("%d%% %s", n, state))
		}
	}
	said = append(said, operator.Grouped(s.Failures)+" failed")
	return newMini(states, failed, strings.Join(said, ", "))
}

// countedMini returns the strip of a job that has succeeded, from its numbers. Its record does not
// say where entities have failed, so they are drawn at the right end. It returns nil for other
// jobs.
func countedMini(state mapper.State, processed, failures int64) *miniStrip {
	if !succeeded(state) {
		return nil
	}
	states := slices.Repeat([]picture.State{picture.Done}, miniCells)
	if failures > 0 {
		n := int(math.Round(miniCells * float64(failures) / float64(processed+failures)))
		for i := miniCells - max(1, n); i < miniCells; i++ {
			states[i] = picture.Failed
		}
	}
	return newMini(states, make([]bool, miniCells),
		fmt.Sprintf("%s done, %s failed", operator.Grouped(processed), operator.Grouped(failures)))
}

// cellsOf returns, for each cell, the state of most of its entities, and whether any of them has
// failed.
func cellsOf(p *picture.Picture) (states []picture.State, failed []bool) {
	shares := make([]map[picture.State]float64, miniCells)
	for i := range shares {
		shares[i] = make(map[picture.State]float64)
	}
	failed = make([]bool, miniCells)
	for _, at := range p.Slots(miniCells) {
		r := &p.Ranges[at.Range]
		entities := max(1e-3, float64(r.Entities)*r.Weight) // give a page without entities a width, too
		first := min(miniCells-1, int(at.X))
		switch {
		case r.Alone && r.State == picture.Failed: // its mark is at the end of the page in which it failed
			last := max(0, min(miniCells, int(math.Ceil(at.X)))-1)
			failed[last] = true
			shares[last][picture.Failed] += entities
			continue
		case r.Alone:
			continue
		}
		for i := first; i < miniCells && float64(i) < at.X+at.Width; i++ {
			over := min(float64(i+1), at.X+at.Width) - max(float64(i), at.X)
			shares[i][r.State] += entities * over / at.Width
		}
	}
	for i := range shares {
		most := picture.Pending
		for _, state := range miniStates {
			if shares[i][state] > shares[i][most] {
				most = state
			}
		}
		states = append(states, most)
	}
	return states, failed
}

// newMini returns the strip with the given cells and description.
func newMini(states []picture.State, failed []bool, says string) *miniStrip {
	m := &miniStrip{Width: miniCells, Height: miniHeight, Says: says}
	for _, state := range miniStates {
		m.add(string(state), 0, func(i int) bool { return states[i] == state })
	}
	m.add(string(picture.Failed), miniHeight-miniMark, func(i int) bool { return failed[i] })
	return m
}

// add draws some cells in the colour of a CSS class: the ones for which the function in the
// parameter is returns true. The parameter top is the distance of their upper ends from the strip's
// upper edge.
func (m *miniStrip) add(class string, top int, is func(cell int) bool) {
	var d strings.Builder
	for i := 0; i < miniCells; i++ {
		first := i
		for i < miniCells && is(i) {
			i++
		}
		if i > first {
			fmt.Fprintf(&d, "M%d %dh%dv%dh-%dz", first, top, i-first, miniHeight-top, i-first)
		}
	}
	if d.Len() > 0 {
		m.Paths = append(m.Paths, miniPath{class, d.String()})
	}
}

func succeeded(s mapper.State) bool {
	return s == mapper.StateSucceeded || s == mapper.StateSucceededWithFailures
}
