package mapper

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// The constants of splitting. They are ratios of pages, so that they hold for
// any page size.
const (
	// maxFanOut is the most children that a range is cut into: a hundred records
	// of at most maxSampleBytes fit a commit, and at a hundred a level a billion
	// pages are five levels deep.
	maxFanOut = 100

	// maxExact is the most pieces that a range is cut into at exact boundaries, each
	// of which costs a query of one key, one after the other.
	maxExact = 32

	// farPages is how long a range is whose exact boundaries are too far away to be
	// worth finding, if there are samples in it; and nearPages, how far apart they are
	// at most, as so many keys are passed by queries at the same time.
	farPages  = 10 * maxExact
	nearPages = farPages / 8

	// rootPages is the least that a piece is estimated to hold that is cut at samples:
	// each cut at a random key leaves a page half empty on average, so 10 make 10% more
	// pages than are full.
	rootPages = 10

	// samplesPerCut is how many samples are drawn for each cut: the largest of
	// 100 pieces is then 1.7 times the mean, where one sample a cut gives 4.6
	// [simulation]. Twice as many cost a job's start more than they gain, as what a
	// piece has more than a worker's portion is cut off anyway.
	samplesPerCut = 16

	// samplesPerSharedCut is how many if several workers share each piece: as long as those
	// are not too large to be counted and cut exactly, 600 samples are enough, which are
	// read in two batches.
	samplesPerSharedCut = 6

	// unknownPieces is how many pieces are cut off the beginning of a range of unknown
	// size, each of them twice as long as the one before.
	unknownPieces = 6

	// unknownPage is how many pages the first of them has at most.
	unknownPage = 10

	// grains is into how many pieces a worker's portion is cut at most.
	grains = 20

	// longestRun is how many pages a task keeps for itself at most, and slowRun, if
	// the function is slow.
	longestRun = 100
	slowRun    = 2

	// fewPages is how many pages a worker's portion has that does not go on in pieces which
	// become shorter and shorter.
	fewPages = 8
)

// A stretch is what splitting knows of a range, and what it makes of it.
type stretch struct {
	start, end *position   // nil: the ends of the job
	samples    []*position // inside, in order
	estimate   int64       // of the entities inside; 0 is unknown
	exact      bool        // they were counted
	guess      int64       // what the estimate was before that
	workers    int64       // how many should share it; 0 is one
	portion    int64       // how many entities are one worker's portion; 0: all of them
	late       float64     // which share of lateBy its task begins later
	space      space       // that all its entities are in; empty: there may be several
	survey     bool        // its task looks around, as the root does
}

// holds reports whether the stretch goes on behind a position.
func (s stretch) holds(p *position) bool { return s.end == nil || comparePositions(p, s.end) < 0 }

// A Splitting says how a job's ranges are cut. The zero value is adaptive, and what
// jobs should have. The others are ways of other mappers, to compare with.
type Splitting struct {
	// First is into how many ranges the kind is cut at the start, in [1, 5000]. They are
	// recorded in one commit.
	First int `json:"first,omitempty"`

	// FanOut is into how many ranges a task cuts what is left behind its page, in [1, 100].
	// 1 is none: each of the first ranges is processed page after page, as static sharding
	// does. First and FanOut are set together.
	FanOut int `json:"fan_out,omitempty"`

	// Bisect has what is left cut at the middle of its key space, and not where entities
	// are. First has to be 1 then, and FanOut 2.
	Bisect bool `json:"bisect,omitempty"`
}

func (sp Splitting) validate() error {
	switch {
	case sp == Splitting{}, sp == Splitting{First: 1, FanOut: 2, Bisect: true}:
		return nil
	case sp.Bisect:
		return fmt.Errorf("StartOptions.Splitting has to have First 1 and FanOut 2 to bisect, it is %+v", sp)
	case sp.First < 1 || sp.First > maxWorkers || sp.FanOut < 1 || sp.FanOut > maxFanOut:
		return fmt.Errorf("StartOptions.Splitting has to have First in [1, %d] and FanOut in [1, %d], or nothing set, it is %+v", maxWorkers, maxFanOut, sp)
	}
	return nil
}

// adaptive reports whether tasks find out by themselves how to cut.
func (sp Splitting) adaptive() bool { return sp.FanOut == 0 }

// sampleSize returns how many keys the root samples.
func (sp Splitting) sampleSize(workers int64) int {
	const fixed = 512 // for static shards, as other mappers have it
	switch {
	case sp.Bisect || sp.First == 1 && sp.FanOut == 1:
		return 0
	case !sp.adaptive():
		return max(fixed, sp.First)
	}
	if workers >= 2*maxFanOut {
		return samplesPerSharedCut * maxFanOut
	}
	return samplesPerCut * int(min(workers, maxFanOut))
}

// A cutting is where a range is cut. The first piece is the one that its task keeps.
type cutting struct {
	pieces int64 // how many; 0 or 1: the range is not cut

	// How: in the middle, evenly at samples, or else exactly behind so many entities for
	// the first piece, and for each of the next ones.
	bisect, samples bool
	keep, each      int64
	doubling        bool  // each is twice the one before
	spread          int64 // if not 0: a short rest is spread over pieces, up to so many entities on each

	first bool // the others begin before the page is processed
}

// cut decides where a task cuts its range.
func (sp Splitting) cut(s stretch, root bool, page, jobPage int64) cutting {
	if !sp.adaptive() {
		return sp.fixed(s, root, page)
	}
	workers, pages := max(1, s.workers), (s.estimate+page-1)/page
	portion, grain := pages, int64(1)
	if s.portion > 0 {
		portion = min(max(pages, s.guess/page), max(1, (s.portion+page/2)/page))
		grain = max(1, s.portion/page/grains)
	}
	switch {
	case s.estimate == 0:
		// It may be short: then some of the pieces do not come about. What is behind them
		// is halved.
		each := min(grain, unknownPage) * page
		return cutting{pieces: unknownPieces + 1, keep: each, each: each, doubling: true, first: true}
	case pages == 1 || workers == 1 && (pages <= 2*grain || pages <= 1+portion && portion <= 2): // see spread
		return cutting{}
	case workers > 1:
		n := min(workers, pages/rootPages, maxFanOut, int64(len(s.samples)+1))
		if n > 1 && (root || pages > farPages && (n > maxExact || pages > n*nearPages)) {
			return cutting{pieces: n, samples: true, first: true}
		}
		n = min(workers, pages, maxExact)
		each := min((pages+n-1)/n, max(min(2, portion), portion*3/4, pages/maxExact), nearPages) * page
		// The range may be longer than it is estimated: the pieces go on to its end.
		c := cutting{pieces: 2 * maxExact, keep: each, each: each, first: true}
		if portion <= 2 && each == portion*page {
			c.spread = page * 2 / 5
		}
		return c
	}
	if n := min(int64(len(s.samples)+1), maxFanOut); n > 1 && pages > farPages {
		return cutting{pieces: n, samples: true, first: true}
	}
	// Each task keeps most of a worker's portion, page after page, and leaves the rest in
	// pieces of a quarter of that to whoever has nothing to do by then. They are cut in the
	// same way when their turn comes: so what is waiting becomes shorter and shorter, and
	// all workers end at about the same time.
	run := int64(longestRun)
	if 2*page <= jobPage {
		run = slowRun
	}
	keep := max(1, min(run, portion*3/4))
	if keep >= pages {
		return cutting{}
	}
	each := min(max(grain, portion/4, 2*(pages-keep)/maxExact), nearPages)
	return cutting{pieces: 1 + maxExact, keep: keep * page, each: each * page}
}

// fixed decides for the ways of other mappers.
func (sp Splitting) fixed(s stretch, root bool, page int64) cutting {
	n := int64(sp.FanOut)
	switch {
	case root && sp.First > 1:
		return cutting{pieces: min(int64(sp.First), int64(len(s.samples)+1)), samples: true, first: true}
	case n == 1:
		return cutting{}
	case sp.Bisect:
		return cutting{pieces: 2, bisect: true, keep: page}
	}
	pages := (s.estimate + page - 1) / page
	if n = min(n, pages); n > 1 && n <= int64(len(s.samples)) && pages/n >= rootPages {
		return cutting{pieces: n + 1, keep: page, samples: true}
	}
	return cutting{pieces: n + 1, keep: page, each: max(1, pages/max(1, n)) * page}
}

// A finder finds the position of an entity: the n-th from one on, which is the 0-th. nil
// is the end of the range.
type finder func(from *position, n int64) (*position, error)

// apply cuts a range. The first of the pieces is what its task keeps.
func (c cutting) apply(s stretch, find finder) ([]stretch, error) {
	if c.pieces <= 1 {
		return []stretch{s}, nil
	}
	if c.samples && c.keep == 0 {
		return cutAtSamples(s, int(c.pieces)), nil
	}
	var pieces []stretch
	rest, all, ended := s, c.lengths(), s.exact
	lengths := all
	if s.exact {
		lengths = c.lengthsFor(s.estimate)
	}
	expected := findParallel
	if s.estimate > c.keep && c.each > 0 && !c.doubling {
		expected = int((s.estimate-c.keep)/c.each) + 2
	}
	for len(lengths) > 0 {
		few := lengths[:min(len(lengths), findParallel, expected)]
		if expected -= len(few); expected == 0 {
			expected = findParallel // there is more than estimated
		}
		lengths = lengths[len(few):]
		found, here, err := findAll(find, rest, few)
		if err != nil && len(pieces) == 0 {
			return nil, err
		}
		for i, at := range found {
			piece := rest
			piece.end, piece.estimate, piece.exact, piece.workers, piece.samples = at, few[i], true, max(1, s.workers/c.pieces), rest.until(at)
			pieces = append(pieces, piece)
			rest = rest.from(at, rest.estimate-few[i])
		}
		if len(found) < len(few) {
			ended = here
			break
		}
	}
	switch {
	case len(pieces) == 0:
	case c.samples:
		return append(pieces, cutAtSamples(rest, int(c.pieces)-1)...), nil
	case c.bisect, c.doubling && int64(len(pieces)) == c.pieces-1:
		return append(pieces, rest.halves()...), nil
	}
	switch {
	case ended && len(pieces) < len(all): // the range ends in this one
		if !s.exact {
			rest.estimate = all[len(pieces)]
		} else if s.workers > 1 {
			rest.late = max(0, 1-float64(rest.estimate)/float64(c.each))
		}
		rest.workers = 1
	case s.exact:
		rest.workers = max(1, s.workers*rest.estimate/s.estimate)
	default:
		rest.estimate, rest.workers = max(rest.estimate, beyond(s.samples, rest.samples, all[:len(pieces)])), max(1, s.workers/c.pieces)
		if s.estimate > 0 {
			rest.workers = max(rest.workers, s.workers*min(rest.estimate, s.estimate)/s.estimate)
		}
	}
	return append(pieces, rest), nil
}

// even returns the size of a range's pages, up to twice as many as usual, so that the last
// one is no small one.
func (s stretch) even(size, most int64) int64 {
	n := max(1, s.estimate/size)
	return max(size, min((s.estimate+n-1)/n, 2*size, most))
}

// behind decides where a task cuts what is left of its range, as it would end later than
// others: it keeps the pages that it can do in the time that a worker's portion takes, and
// leaves the rest to those that are done with theirs. Where portions have many pages, short
// ranges at the end do that.
//
// A rest of less than half a page it keeps. But if entities take uneven times some workers
// have time to spare: then they get it, too, and soon.
func (s stretch) behind(page int64, elapsed time.Duration, pace pace) cutting {
	each := pace.each()
	if s.portion == 0 || s.portion > fewPages*page || each == 0 {
		return cutting{}
	}
	fit := (time.Duration(s.portion)*each - elapsed) / (each * time.Duration(page))
	keep := max(1, int64(fit)) * page
	uneven := pace.uneven()
	if s.estimate <= keep || s.estimate < keep+page/2 && !uneven {
		return cutting{}
	}
	return cutting{pieces: 2, keep: keep, each: keep, first: uneven && s.estimate < keep+page/2}
}

// counts returns how many entities of a range should be counted at most before it is cut:
// then each piece but the last is full, and how long that one is known. 0 is none.
func (sp Splitting) counts(s stretch, root bool, page, jobPage int64) int64 {
	if !sp.adaptive() || root || s.exact {
		return 0
	}
	if c := sp.cut(s, root, page, jobPage); c.pieces <= 1 || c.samples {
		return 0
	}
	return farPages * page
}

// counted returns the range with the number of its entities, which was counted up to most.
func (s stretch) counted(n, most int64) stretch {
	if n >= most {
		return s
	}
	if s.estimate > 0 && s.workers > 1 {
		s.workers = max(1, (s.workers*n+s.estimate/2)/s.estimate)
	}
	s.estimate, s.guess, s.exact = n, s.estimate, true
	return s
}

// beyond estimates how many entities are behind pieces of known lengths: as many for each
// of the samples as there are inside. Where there are none it takes the rest for as long as
// all pieces together.
func beyond(samples, left []*position, lengths []int64) int64 {
	known := int64(0)
	for _, n := range lengths {
		known += n
	}
	passed := len(samples) - len(left)
	return known * int64(len(left)+1) / int64(passed+1)
}

// lengths returns how many entities the pieces have, but for the last one.
func (c cutting) lengths() []int64 {
	if c.samples || c.bisect {
		return []int64{c.keep}
	}
	lengths := []int64{c.keep}
	for each := c.each; int64(len(lengths)) < c.pieces-1; lengths = append(lengths, each) {
		if c.doubling && len(lengths) > 1 {
			each *= 2
		}
	}
	return lengths
}

// lengthsFor returns the lengths for a range of so many entities: one at the end has no boundary.
//
// Where each piece is a worker's whole portion, a task for a rest behind them would have no
// worker until the first of them ends. So a rest of up to two thirds of a piece is spread over
// the last ones. The price is some more pages that are not full.
func (c cutting) lengthsFor(n int64) []int64 {
	lengths := c.lengths()
	boundaries := max(0, (n-c.keep+c.each-1)/max(1, c.each))
	if boundaries > int64(len(lengths)) {
		return lengths
	}
	lengths = lengths[:boundaries]
	if c.spread == 0 || boundaries == 0 {
		return lengths
	}
	rest := (n-c.keep-1)%c.each + 1
	shares := (rest + c.spread - 1) / c.spread
	if 3*rest > 2*c.each || shares > boundaries {
		return lengths
	}
	lengths = lengths[:boundaries-1]
	for i := range shares - 1 {
		lengths[boundaries-2-i] += rest / shares
	}
	return lengths
}

// findParallel is how many boundaries are looked for at once. Each query passes the keys
// of those before it once more, which is 8.5 times as many as one after the other.
const findParallel = 16

// findAll finds the ends of pieces that follow each other, as far as the range goes. If some
// can't be found, those before them are enough: what is behind is another piece. So are those
// before one that is not behind them, as entities have come or gone meanwhile.
func findAll(find finder, s stretch, lengths []int64) (found []*position, ended bool, err error) {
	found = make([]*position, len(lengths))
	errs := make([]error, len(lengths))
	var group sync.WaitGroup
	n := int64(0)
	for i, length := range lengths {
		n += length
		offset := n
		group.Go(func() { found[i], errs[i] = find(s.start, offset) })
	}
	group.Wait()
	last := s.start
	for i, at := range found {
		if at == nil {
			break
		}
		if last != nil && comparePositions(at, last) <= 0 || !s.holds(at) {
			return found[:i], false, nil
		}
		last = at
	}
	switch end := slices.Index(found, nil); {
	case end < 0:
		return found, false, nil
	case end == 0 && errs[0] != nil:
		return nil, false, errs[0]
	default:
		return found[:end], errs[end] == nil, nil
	}
}

// halves cuts a range of which nothing is known by arithmetic on keys.
func (s stretch) halves() []stretch {
	middle := middle(s.start, s.end)
	if middle == nil {
		return []stretch{s}
	}
	lower, upper := s, s
	lower.end, upper.start = middle, middle
	lower.estimate, upper.estimate = (s.estimate+1)/2, (s.estimate+1)/2
	lower.samples, upper = s.until(middle), s.from(middle, upper.estimate)
	return []stretch{lower, upper}
}

// gapPages is how many pages are between two samples of a large kind, on average: less than
// farPages, so that there are samples in nearly all ranges that are longer than that.
const gapPages = farPages / 4

// samplesFor returns how many keys the root samples of a kind that turns out to be large.
// A billion entities take 25,000 keys, which are read in two seconds.
func samplesFor(estimate, page, workers int64) int {
	const most = 50_000
	pages, least := estimate/page, int64(0)
	if pages > maxFanOut*farPages { // pieces will be cut at samples again
		least = samplesPerCut * maxFanOut
	}
	return int(min(max(least, pages/min(gapPages, max(rootPages, pages/workers))), most))
}

// A milestone is a position whose rank in its kind is known. nil is behind the last one.
type milestone struct {
	at   *position
	rank int64
}

// milestonePages are the ranks of the root's milestones, in pages. Production has one sample in
// 128 entities, so the last one passes some 50 of a kind that has no more than are drawn.
// Where more are needed an aggregation counts.
var milestonePages = []int64{1, 5, 12}

// The entities before one of the samples are counted: before as many as have about
// refinedCount entities before them, but not fewer than the least, which make an estimate
// that is within 25% two times in three, nor more than the most, which make it 6%.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// mostCounted bounds such a count.
const mostCounted = 10_000_000

// further returns before how many of the samples entities have to be counted, as too few of
// them are before the milestones to tell the size of the kind well; 0 if there are enough.
// rough is the estimate without it.
func further(sample []*position, milestones []milestone, rough int64) int {
	last := milestones[len(milestones)-1]
	if last.at == nil || len(sample) < leastSamples {
		return 0
	}
	n := leastSamples
	if rough > 0 {
		n = max(leastSamples, min(mostSamples, int(refinedCount*int64(len(sample))/rough), len(sample)))
	}
	if comparePositions(sample[n-1], last.at) <= 0 {
		return 0
	}
	return n
}

// estimateBy estimates how many entities the root's range holds, and has those before a sample
// counted if that is needed. If they are more than can be counted it takes an earlier sample;
// if that is the first one the kind is at least as large as the estimate.
func estimateBy(sample []*position, milestones []milestone, count func(before *position) (n int64, known bool)) int64 {
	estimate := estimateFrom(sample, milestones)
	for n := further(sample, milestones, estimate); n > 0; n /= 4 {
		rank, known := count(sample[n-1])
		if !known {
			return estimate
		}
		counted := append(slices.Clip(milestones), milestone{at: sample[n-1], rank: rank})
		if estimate = estimateFrom(sample, counted); rank < mostCounted {
			return estimate
		}
	}
	return estimate
}

// estimateFrom estimates how many entities the root's range holds: as many for
// each of its samples as there are before the last milestone for each of those before it.
// How dense samples are differs between databases, so no constant is used. The
// sample may be only the first part of all scatter keys; the ratio is the same.
// Without samples the end of a kind between two milestones says something, and otherwise
// nothing is known.
func estimateFrom(sample []*position, milestones []milestone) int64 {
	least, most := int64(1), int64(math.MaxInt64)
	var last milestone
	for _, m := range milestones {
		if m.at == nil {
			most = m.rank
			break
		}
		last, least = m, m.rank+1
	}
	if last.at == nil {
		return most
	}
	passed := 0
	for passed < len(sample) && comparePositions(sample[passed], last.at) <= 0 {
		passed++
	}
	switch {
	case passed > 0:
		return min(most, max(least, last.rank*int64(len(sample))/int64(passed)))
	case most < math.MaxInt64:
		return min(most, 2*least)
	}
	return 0
}

// from returns the part of a range from a position on. An estimate that says there is
// nothing was too low: then nothing is known.
func (s stretch) from(start *position, estimate int64) stretch {
	i := 0
	for i < len(s.samples) && comparePositions(s.samples[i], start) <= 0 {
		i++
	}
	s.start, s.samples, s.estimate, s.guess, s.exact = start, s.samples[i:], max(0, estimate), 0, s.exact && estimate > 0
	return s
}

// until returns the samples before a position.
func (s stretch) until(end *position) []*position {
	i := 0
	for i < len(s.samples) && comparePositions(s.samples[i], end) < 0 {
		i++
	}
	return slices.Clip(s.samples[:i])
}

// mostWeighed is up to how many entities a kind may be estimated to have so that the pieces
// that the root cuts it into at samples are counted. That costs a read for a thousand of them.
const mostWeighed = 5_000_000

// weighs reports whether the root should count its pieces: samples need not be a random choice.
// Those of entities below ancestors come in clumps [Google's classic
// emulator: the value of __scatter__ is a hash of all IDs of a path, XORed].
func (c cutting) weighs(s stretch) bool {
	return c.samples && c.keep == 0 && s.estimate > 0 && s.estimate <= mostWeighed
}

// mostInPiece is up to how many entities are counted in each of n pieces.
func mostInPiece(n int) int64 { return 2 * mostWeighed / int64(n) }

// weighed returns pieces whose entities were counted, up to so many each. Neighbours that are
// short together become one, and long ones are shared by as many workers as they have portions.
func weighed(pieces []stretch, counts []int64, most, workers, page int64) []stretch {
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	portion := max(1, total/max(1, workers))
	short := max(portion, rootPages*page)
	var merged []stretch
	for i, p := range pieces {
		p.exact = counts[i] < most
		p.estimate = counts[i]
		if !p.exact {
			p.estimate = max(p.estimate, pieces[i].estimate)
		}
		if n := len(merged) - 1; n >= 0 && merged[n].estimate+p.estimate <= short {
			last := &merged[n]
			if p.start != nil {
				last.samples = append(last.samples, p.start)
			}
			last.samples = append(last.samples, p.samples...)
			last.end, last.estimate, last.exact = p.end, last.estimate+p.estimate, last.exact && p.exact
			continue
		}
		merged = append(merged, p)
	}
	for i := range merged {
		p := &merged[i]
		p.portion, p.workers = portion, max(1, (p.estimate+portion/2)/portion)
		p.exact = p.exact && p.estimate > 0
	}
	return merged
}

// cutAtSamples cuts a range into n pieces with equal shares of its samples. Each
// takes along the samples inside it, and its share of the workers.
func cutAtSamples(s stretch, n int) []stretch {
	pieces := make([]stretch, 0, n)
	start, first := s.start, 0
	total := int64(len(s.samples) + 1) // gaps between samples
	for i := 1; i <= n; i++ {
		end, next := s.end, len(s.samples)
		if i < n {
			// The i-th cut is at sample c, counted from 1: c of the gaps are before it.
			c := (len(s.samples) + 1) * i / n
			end, next = s.samples[c-1], c-1
		}
		inside := s.samples[first:next]
		pieces = append(pieces, stretch{
			start:    start,
			end:      end,
			samples:  slices.Clip(inside),
			estimate: max(1, s.estimate*int64(len(inside)+1)/total),
			workers:  max(1, s.workers/int64(n)),
			portion:  s.portion,
			space:    s.space,
		})
		start, first = end, next+1
	}
	return pieces
}
