package split

import (
	"fmt"
)

// The constants of splitting. They are ratios of pages, so that they hold for
// any page size.
const (
	// MaxFanOut is the most children that a range is cut into: a hundred records
	// of at most maxSampleBytes fit a commit, and at a hundred a level a billion
	// pages are five levels deep.
	MaxFanOut = 100

	// maxFirst is the most ranges that a kind is cut into at the start: they are recorded in one
	// commit.
	maxFirst = 5000

	// maxExact is the most pieces that a range is cut into at exact boundaries, each
	// of which costs a query of one key, one after the other.
	maxExact = 32

	// FarPages is how long a range is whose exact boundaries are too far away to be
	// worth finding, if there are samples in it; and nearPages, how far apart they are
	// at most, as so many keys are passed by queries at the same time.
	FarPages  = 10 * maxExact
	nearPages = FarPages / 8

	// RootPages is the least that a piece is estimated to hold that is cut at samples:
	// each cut at a random key leaves a page half empty on average, so 10 make 10% more
	// pages than are full.
	RootPages = 10

	// samplesPerCut is how many samples are drawn for each cut: the largest of
	// 100 pieces is then 1.7 times the mean, where one sample a cut gives 4.6
	// [simulation]. Twice as many cost a job's start more than they gain, as what a
	// piece has more than a worker's fair share is cut off anyway.
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

	// shareParts is into how many pieces a worker's fair share is cut at most.
	shareParts = 20

	// longestRun is how many pages a task keeps for itself at most, and slowRun, if
	// the function is slow.
	longestRun = 100
	slowRun    = 2

	// FewPages is how many pages a worker's fair share has at most that a task keeps as a whole: pieces
	// that become shorter and shorter would be more tasks than that is worth. With twice as many,
	// 400,000 entities of uneven times take 100 workers 1.26 times the ideal, and 1.19 so [bench].
	FewPages = 4
)

// A Strategy says how a job's ranges are cut. The zero value is adaptive. The others are ways of
// other mappers: into first ranges at the start, and into fanOut what is left behind a page.
type Strategy struct {
	First, FanOut int
	Bisect        bool // in the middle of the key space
}

func (sp Strategy) Validate() error {
	switch {
	case sp == Strategy{}, sp == Strategy{First: 1, FanOut: 2, Bisect: true}:
		return nil
	case sp.Bisect:
		return fmt.Errorf("StartOptions.Splitting has to have First 1 and FanOut 2 to bisect, it is %+v", sp)
	case sp.First < 1 || sp.First > maxFirst || sp.FanOut < 1 || sp.FanOut > MaxFanOut:
		return fmt.Errorf("StartOptions.Splitting has to have First in [1, %d] and FanOut in [1, %d], or nothing set, it is %+v", maxFirst, MaxFanOut, sp)
	}
	return nil
}

// Adaptive reports whether tasks find out by themselves how to cut.
func (sp Strategy) Adaptive() bool { return sp.FanOut == 0 }

// SampleSize returns how many keys the root samples.
func (sp Strategy) SampleSize(workers int64) int {
	const fixed = 512 // for static shards, as other mappers have it
	switch {
	case sp.Bisect || sp.First == 1 && sp.FanOut == 1:
		return 0
	case !sp.Adaptive():
		return max(fixed, sp.First)
	}
	if workers >= 2*MaxFanOut {
		return samplesPerSharedCut * MaxFanOut
	}
	return samplesPerCut * int(min(workers, MaxFanOut))
}

// Plan decides where a task cuts its range.
func (sp Strategy) Plan(s Piece, root bool, page, jobPage int64) CutPlan {
	if !sp.Adaptive() {
		return sp.fixed(s, root, page)
	}
	workers, pages := max(1, s.Workers), (s.Estimate+page-1)/page
	fair, grain := pages, int64(1)
	if s.FairShare > 0 {
		fair = min(max(pages, s.guess/page), max(1, (s.FairShare+page/2)/page))
		grain = max(1, s.FairShare/page/shareParts)
	}
	switch {
	case s.Estimate == 0:
		// It may be short: then some of the pieces do not come about. What is behind them
		// is halved.
		each := min(grain, unknownPage) * page
		return CutPlan{Pieces: unknownPieces + 1, Keep: each, each: each, doubling: true, First: true}
	case pages == 1 || workers == 1 && (pages <= 2*grain || pages <= 1+fair && fair <= FewPages && s.FairShare > 0): // see spread and behind
		return CutPlan{}
	case workers > 1 && s.Exact && 2*page <= jobPage && s.Estimate < 2*page*workers:
		// The function is slow, and its pages may be longer, see even: as long as workers' shares.
		share := max(page, (s.Estimate+workers-1)/workers)
		each := share * ((s.Estimate + share*MaxFanOut - 1) / (share * MaxFanOut))
		return CutPlan{Pieces: MaxFanOut, Keep: each, each: each, First: true}
	case workers > 1:
		n := min(workers, pages/RootPages, MaxFanOut, int64(len(s.Samples)+1))
		if n > 1 && (root || pages > FarPages && (n > maxExact || pages > n*nearPages)) {
			return CutPlan{Pieces: n, Samples: true, First: true}
		}
		n = min(workers, pages, maxExact)
		own := max(min(FewPages, fair), fair*3/4)
		if s.Exact {
			own = fair // each piece leaves something to others by itself
		}
		each := min((pages+n-1)/n, max(own, pages/maxExact), nearPages) * page
		// The range may be longer than it is estimated: the pieces go on to its end.
		c := CutPlan{Pieces: 2 * maxExact, Keep: each, each: each, First: true}
		if fair <= FewPages && each == fair*page {
			c.spread = page / 3 // 1.09 pages for each full one on 1,000 workers; two fifths make 1.08, and end later [bench]
		}
		return c
	}
	if n := min(int64(len(s.Samples)+1), MaxFanOut); n > 1 && pages > FarPages {
		return CutPlan{Pieces: n, Samples: true, First: true}
	}
	// Each task keeps most of a worker's fair share, page after page, and leaves the rest in
	// pieces of a quarter of that, or an eighth if the function is slow, to whoever has nothing
	// to do by then. They are cut in the same way when their turn comes: so what is waiting
	// becomes shorter and shorter, and all workers end at about the same time.
	run, pieces := int64(longestRun), int64(4)
	if 2*page <= jobPage {
		run, pieces = slowRun, 8
	}
	keep := max(1, min(run, fair*3/4))
	if keep >= pages {
		return CutPlan{}
	}
	each := min(max(grain, fair/pieces, 2*(pages-keep)/maxExact), nearPages)
	return CutPlan{Pieces: 1 + maxExact, Keep: keep * page, each: each * page}
}

// fixed decides for the ways of other mappers.
func (sp Strategy) fixed(s Piece, root bool, page int64) CutPlan {
	n := int64(sp.FanOut)
	switch {
	case root && sp.First > 1:
		return CutPlan{Pieces: min(int64(sp.First), int64(len(s.Samples)+1)), Samples: true, First: true}
	case n == 1:
		return CutPlan{}
	case sp.Bisect:
		return CutPlan{Pieces: 2, bisect: true, Keep: page}
	}
	pages := (s.Estimate + page - 1) / page
	if n = min(n, pages); n > 1 && n <= int64(len(s.Samples)) && pages/n >= RootPages {
		return CutPlan{Pieces: n + 1, Keep: page, Samples: true}
	}
	return CutPlan{Pieces: n + 1, Keep: page, each: max(1, pages/max(1, n)) * page}
}

// Counts returns how many entities of a range should be counted at most before it is cut:
// then each piece but the last is full, and how long that one is known. 0 is none.
func (sp Strategy) Counts(s Piece, root bool, page, jobPage int64) int64 {
	if !sp.Adaptive() || root || s.Exact {
		return 0
	}
	if c := sp.Plan(s, root, page, jobPage); c.Pieces <= 1 || c.Samples {
		return 0
	}
	return FarPages * page
}

// gapPages is how many pages are between two samples of a large kind, on average: less than
// farPages, so that there are samples in nearly all ranges that are longer than that.
const gapPages = FarPages / 4

// SamplesFor returns how many keys the root samples of a kind that turns out to be large.
// A billion entities take 25,000 keys, which are read in two seconds.
func SamplesFor(estimate, page, workers int64) int {
	const most = 50_000
	pages, least := estimate/page, int64(0)
	if pages > MaxFanOut*FarPages { // pieces will be cut at samples again
		least = samplesPerCut * MaxFanOut
	}
	return int(min(max(least, pages/min(gapPages, max(RootPages, pages/workers))), most))
}
