package mapper

import (
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// The constants of splitting. They are ratios of pages, so that they hold for
// any page size.
const (
	// maxFanOut is the most children that a range is cut into: a hundred records
	// of at most maxSampleBytes fit a commit, and at a hundred a level a billion
	// pages are five levels deep.
	maxFanOut = 100

	// maxFirst is the most ranges that a kind is cut into at the start: they are recorded in one
	// commit.
	maxFirst = 5000

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

	// fewPages is how many pages a worker's portion has at most that a task keeps as a whole: pieces
	// that become shorter and shorter would be more tasks than that is worth. With twice as many,
	// 400,000 entities of uneven times take 100 workers 1.26 times the ideal, and 1.19 so [bench].
	fewPages = 4
)

// A strategy says how a job's ranges are cut. The zero value is adaptive. The others are ways of
// other mappers: into first ranges at the start, and into fanOut what is left behind a page.
type strategy struct {
	First, FanOut int
	Bisect        bool // in the middle of the key space
}

func (sp strategy) validate() error {
	switch {
	case sp == strategy{}, sp == strategy{First: 1, FanOut: 2, Bisect: true}:
		return nil
	case sp.Bisect:
		return fmt.Errorf("StartOptions.Splitting has to have First 1 and FanOut 2 to bisect, it is %+v", sp)
	case sp.First < 1 || sp.First > maxFirst || sp.FanOut < 1 || sp.FanOut > maxFanOut:
		return fmt.Errorf("StartOptions.Splitting has to have First in [1, %d] and FanOut in [1, %d], or nothing set, it is %+v", maxFirst, maxFanOut, sp)
	}
	return nil
}

// adaptive reports whether tasks find out by themselves how to cut.
func (sp strategy) adaptive() bool { return sp.FanOut == 0 }

// sampleSize returns how many keys the root samples.
func (sp strategy) sampleSize(workers int64) int {
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

// cut decides where a task cuts its range.
func (sp strategy) cut(s stretch, root bool, page, jobPage int64) cutting {
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
	case pages == 1 || workers == 1 && (pages <= 2*grain || pages <= 1+portion && portion <= fewPages && s.portion > 0): // see spread and behind
		return cutting{}
	case workers > 1 && s.exact && 2*page <= jobPage && s.estimate < 2*page*workers:
		// The function is slow, and its pages may be longer, see even: as long as workers' shares.
		share := max(page, (s.estimate+workers-1)/workers)
		each := share * ((s.estimate + share*maxFanOut - 1) / (share * maxFanOut))
		return cutting{pieces: maxFanOut, keep: each, each: each, first: true}
	case workers > 1:
		n := min(workers, pages/rootPages, maxFanOut, int64(len(s.samples)+1))
		if n > 1 && (root || pages > farPages && (n > maxExact || pages > n*nearPages)) {
			return cutting{pieces: n, samples: true, first: true}
		}
		n = min(workers, pages, maxExact)
		own := max(min(fewPages, portion), portion*3/4)
		if s.exact {
			own = portion // each piece leaves something to others by itself
		}
		each := min((pages+n-1)/n, max(own, pages/maxExact), nearPages) * page
		// The range may be longer than it is estimated: the pieces go on to its end.
		c := cutting{pieces: 2 * maxExact, keep: each, each: each, first: true}
		if portion <= fewPages && each == portion*page {
			c.spread = page / 3 // 1.09 pages for each full one on 1,000 workers; two fifths make 1.08, and end later [bench]
		}
		return c
	}
	if n := min(int64(len(s.samples)+1), maxFanOut); n > 1 && pages > farPages {
		return cutting{pieces: n, samples: true, first: true}
	}
	// Each task keeps most of a worker's portion, page after page, and leaves the rest in
	// pieces of a quarter of that, or an eighth if the function is slow, to whoever has nothing
	// to do by then. They are cut in the same way when their turn comes: so what is waiting
	// becomes shorter and shorter, and all workers end at about the same time.
	run, pieces := int64(longestRun), int64(4)
	if 2*page <= jobPage {
		run, pieces = slowRun, 8
	}
	keep := max(1, min(run, portion*3/4))
	if keep >= pages {
		return cutting{}
	}
	each := min(max(grain, portion/pieces, 2*(pages-keep)/maxExact), nearPages)
	return cutting{pieces: 1 + maxExact, keep: keep * page, each: each * page}
}

// fixed decides for the ways of other mappers.
func (sp strategy) fixed(s stretch, root bool, page int64) cutting {
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

// behind decides where a task cuts what is left of its range, as it would end later than
// others, given how long the function ran in this delivery. It keeps the pages that it can do in
// the time that a worker's portion takes, and leaves the rest to those that are done with theirs.
// Where portions have many pages, short ranges at the end do that.
//
// A rest of less than half a page it keeps. But if entities take uneven times some workers
// have time to spare: then they get it, too, and soon.
func (s stretch) behind(page, jobPage int64, ran time.Duration, pace pace.Throughput) cutting {
	each, uneven := pace.Each(), pace.Uneven()
	if !s.few(jobPage) || each == 0 {
		return cutting{}
	}
	due := time.Duration(s.portion)*each - ran
	if !uneven {
		due += each * time.Duration(page) / 2 // to the next page
	}
	keep := max(1, int64(due/(each*time.Duration(page)))) * page
	rest := s.estimate - keep
	if rest <= 0 || rest < page/2 && (!uneven || time.Duration(rest)*each < worthTask) {
		return cutting{}
	}
	return cutting{pieces: 2, keep: keep, each: keep, first: uneven, anew: true}
}

// overdue decides whether a task shares its last page, as it would end much later than others:
// by a sixth of what a worker's portion takes. That is for entities that take uneven times.
func (s stretch) overdue(page, jobPage int64, ran time.Duration, pace pace.Throughput) cutting {
	each := pace.Each()
	if !s.few(jobPage) || !s.exact || !pace.Uneven() || s.estimate < page/2 ||
		time.Duration(s.estimate/2)*each < worthTask || ran+time.Duration(s.estimate)*each < time.Duration(s.portion)*each*7/6 {
		return cutting{}
	}
	return cutting{pieces: 2, keep: s.estimate / 2, each: s.estimate / 2, first: true, anew: true}
}

// worthTask is how long the function has to take for entities that are given to another worker out
// of turn: a task and two commits take about as long.
const worthTask = 200 * time.Millisecond

// few reports whether a worker's portion has few pages.
func (s stretch) few(jobPage int64) bool { return s.portion > 0 && s.portion <= fewPages*jobPage }

// counts returns how many entities of a range should be counted at most before it is cut:
// then each piece but the last is full, and how long that one is known. 0 is none.
func (sp strategy) counts(s stretch, root bool, page, jobPage int64) int64 {
	if !sp.adaptive() || root || s.exact {
		return 0
	}
	if c := sp.cut(s, root, page, jobPage); c.pieces <= 1 || c.samples {
		return 0
	}
	return farPages * page
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
