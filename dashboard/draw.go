package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// Sizes of a strip, in units of its SVG image.
const (
	stripWidth  = 1000
	stripHeight = 56
	laneHeight  = 8 // the height of the area below the strip that has the ranges of single entities
	markWidth   = 3
)

// A strip is a picture of a job's key space as one row of rectangles. Each rectangle stands for a
// range.
type strip struct {
	Width, Height int
	Slots         []slot
	Legend        []key
	First, Last   string // the start and the end of the key space
	Says          string // a description of the strip in words
}

// A slot is the rectangle of one range on a strip.
type slot struct {
	X, Y, W, H string
	Class      string
	Range      int    // the index of the range in the picture
	To         string // the address of the range's page
	Text       string
	// frames of a replay, from 0: the first one in which the range exists, and the first one in
	// which it is done
	Born, Done int
	Began      int    // the first frame in which the range's page has started
	Final      string // the slot's class in the last frame
}

// A key is a line of a strip's legend, which says what a colour means.
type key struct {
	Class, Name string
	Share       string // the share of the entities with this colour, or the number of ranges
}

// unit formats a length with up to two decimals.
func unit(f float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", f), "0"), ".")
}

// class returns the CSS class of ranges in the n-th class of a colouring
// ([picture.Picture.Classes]).
func class(by picture.Colour, n int) string {
	if n == picture.None {
		return "none"
	}
	if by == picture.ByState {
		return []string{"pending", "running", "done", "slow", "failed"}[n]
	}
	return fmt.Sprint("step", n)
}

// draw returns the strip of a job's ranges. The argument seen has the same ranges as p, with
// redacted texts. The shares in the legend fit the job's progress bar.
func draw(job string, p *picture.Picture, seen []ranged, by picture.Colour, progress mapper.Progress) strip {
	classes, names := p.Classes(by)
	s := strip{Width: stripWidth, Height: stripHeight + laneHeight + 2}
	failed := 0.0
	for _, at := range p.Slots(stripWidth) {
		r := &seen[at.Range]
		v := slot{X: unit(at.X), Y: "0", W: unit(at.Width), H: fmt.Sprint(stripHeight),
			Class: class(by, classes[at.Range])}
		if r.Alone {
			if !r.Done.IsZero() && r.State != picture.Failed {
				continue // the entity is also in the page in which it first failed, and that page has a rectangle
			}
			v.X, v.Y, v.W, v.H = unit(min(at.X, stripWidth-markWidth)), fmt.Sprint(stripHeight+2),
				fmt.Sprint(markWidth), fmt.Sprint(laneHeight)
			if r.State == picture.Failed {
				v.Class = "failed"
				failed += r.Weight
			}
		}
		v.Range = at.Range
		v.To = "range?" + url.Values{"job": {job}, "range": {r.ID}}.Encode()
		v.Text = title(r)
		s.Slots = append(s.Slots, v)
	}
	shares := sharesOf(p, classes, len(names), progress)
	for i, name := range names {
		if class := class(by, i); class != "failed" {
			s.Legend = append(s.Legend, key{class, name, fmt.Sprintf("%d%%", shares[i])})
		}
	}
	if shares[picture.None] > 0 {
		s.Legend = append(s.Legend, key{"none", "nothing to say yet", fmt.Sprintf("%d%%", shares[picture.None])})
	}
	marks := operator.Grouped(int64(math.Round(failed)))
	if failed > 0 && p.Estimated {
		marks = "about " + marks
	}
	s.Legend = append(s.Legend, key{"failed", "failed", marks})
	s.First, s.Last = "the first key", "the last key"
	if len(seen) > 0 && !p.Estimated { // in a sample, the first and last range are not at the ends of the key space
		s.First = cmp.Or(seen[0].Start, s.First)
		for i := range seen {
			if !seen[i].Alone {
				s.Last = cmp.Or(seen[i].End, "the last key")
			}
		}
	}
	s.Says = fmt.Sprintf("The key space of the job in %s, by %s:", operator.Counted(int64(len(s.Slots)), "range",
		"ranges"), by)
	for _, k := range s.Legend {
		s.Says += fmt.Sprintf(" %s %s,", k.Name, k.Share)
	}
	s.Says = strings.TrimSuffix(s.Says, ",") + "."
	return s
}

// failures is the key of sharesOf's result for failed ranges. It is none of the classes of a
// colouring.
const failures = picture.None - 1

// sharesOf returns which percentage of the job's entities is in each class. The classes are 0 to
// n-1, [picture.None] and failures. The sum of all percentages is 100. Done and failed ranges
// together have the percentage that the job's progress bar shows.
func sharesOf(p *picture.Picture, classes []int, n int, progress mapper.Progress) map[int]int {
	done, open := make(map[int]float64), make(map[int]float64)
	sumDone, sumOpen := 0.0, 0.0
	for i := range p.Ranges {
		r := &p.Ranges[i]
		w := float64(r.Entities) * r.Weight
		switch {
		case r.State == picture.Failed:
			done[failures], sumDone = done[failures]+w, sumDone+w
		case !r.Done.IsZero():
			done[classes[i]], sumDone = done[classes[i]]+w, sumDone+w
		default:
			open[classes[i]], sumOpen = open[classes[i]]+w, sumOpen+w
		}
	}
	part := sumDone / max(1, sumDone+sumOpen)
	if progress.Fraction > 0 && sumDone > 0 && sumOpen > 0 {
		part = progress.Fraction
	}
	shares, at := make(map[int]int), 0.0
	add := func(weights map[int]float64, sum, part float64) {
		for class := failures; class < n; class++ {
			next := at + part*weights[class]/max(1, sum)
			shares[class] += int(math.Round(100*next)) - int(math.Round(100*at))
			at = next
		}
	}
	add(done, sumDone, part)
	add(open, sumOpen, 1-part)
	return shares
}

// title returns one line that describes a range.
func title(r *ranged) string {
	if r.Alone {
		return fmt.Sprintf("%s: one entity, %s", r.State, visible(cmp.Or(r.Start, "the first key"), 80))
	}
	text := fmt.Sprintf("%s: %s from %s", r.State, operator.Counted(r.Entities, "entity", "entities"),
		visible(cmp.Or(r.Start, "the first key"), 80))
	if pace := r.Pace(); pace > 0 {
		text += fmt.Sprintf(", %s each", span(pace))
	}
	if n := r.FailedAttempts(); n > 0 {
		text += ", " + operator.Counted(n, "failed attempt", "failed attempts")
	}
	return text
}

// Sizes of a chart, in units of its SVG image.
const (
	chartWidth  = 600
	chartHeight = 90
)

// A chart is the drawing of a series of numbers.
type chart struct {
	Width, Height int
	Path          string
	// the SVG path for the latest moments, which may still change because pages of them are
	// unfinished
	Partial string
	Top     string // the number at the top of the vertical axis
	To      string // the length of time that the chart shows
	Says    string
}

// chartOf draws a chart with one step for each moment. The parameter of is a function that returns
// the number to draw for a moment.
func chartOf(all []picture.Moment, of func(picture.Moment) float64) chart {
	c := chart{Width: chartWidth, Height: chartHeight}
	most, sum, whole := 0.0, 0.0, 0
	for _, m := range all {
		if most = max(most, of(m)); !m.Partial {
			sum, whole = sum+of(m), whole+1
		}
	}
	top := roundUp(most)
	first := len(all)
	if i := slices.IndexFunc(all, func(m picture.Moment) bool { return m.Partial }); i >= 0 {
		first = i
	}
	c.Path, c.Partial = steps(all, 0, first, top, of), steps(all, first, len(all), top, of)
	c.Top = amount(top)
	if len(all) > 1 {
		part := all[1].From.Sub(all[0].From)
		c.To = span(part * time.Duration(len(all)))
		c.Says = fmt.Sprintf("at most %s, %s on average", amount(most), amount(sum/float64(max(1, whole))))
	}
	return c
}

// steps returns the SVG path for the moments all[from:to], or "" if there are none. The parameter
// top is the number at the top of the chart, and the function in the parameter of returns a
// moment's number.
func steps(all []picture.Moment, from, to int, top float64, of func(picture.Moment) float64) string {
	if from >= to {
		return ""
	}
	x := func(i int) string { return unit(chartWidth * float64(i) / float64(len(all))) }
	var b strings.Builder
	fmt.Fprintf(&b, "M%s %d", x(from), chartHeight)
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "V%sH%s", unit(chartHeight*(1-of(all[i])/top)), x(i+1))
	}
	fmt.Fprintf(&b, "V%dZ", chartHeight)
	return b.String()
}

// roundUp rounds up to a number with only one digit other than 0, such as 300. The result is at
// least 1.
func roundUp(f float64) float64 {
	if f <= 1 {
		return 1
	}
	digit := math.Pow(10, math.Floor(math.Log10(f)))
	return digit * math.Ceil(f/digit)
}

// A branch is a bar that shows how many ranges have one depth in the tree of ranges.
type branch struct {
	picture.Level
	X, Width, OpenWidth string // position and widths in percent; the bar is centred
}

// branches draws levels as bars, one below the other. A bar's width is the square root of its
// level's number of ranges, because one level often has a thousand times as many as another.
func branches(all []picture.Level) (drawn []branch) {
	most := 0.0
	for _, l := range all {
		most = max(most, l.Ranges)
	}
	for _, l := range all {
		w := 100 * math.Sqrt(l.Ranges/max(1, most))
		drawn = append(drawn, branch{l, unit(50 - w/2), unit(w), unit(w * l.Open / max(1, l.Ranges))})
	}
	return drawn
}
