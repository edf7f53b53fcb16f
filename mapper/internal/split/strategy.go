package split

import (
	"slices"

	"github.com/scattermap/scattermap/internal/setting"
)

// The constants of splitting. Most are ratios or numbers of pages of entities, so they are valid
// for any page size.
const (
	// MaxFanOut is the largest number of children into which one commit cuts a range. It limits the
	// commit to a hundred records, each with up to MaxSampleBytes of samples. With it, five levels
	// of ranges are enough for a billion pages of entities.
	MaxFanOut = 100

	// maxFirst is the largest value of Strategy.First. One commit records all of these ranges.
	maxFirst = 5000

	// maxExact is the largest number of pieces for which exact boundaries are searched, if the
	// range has samples. Each exact boundary costs a query. For more pieces, the range is cut at
	// its samples.
	maxExact = 32

	// FarPages is the number of pages of entities above which a range is cut at its samples, if it
	// has any. A search for exact boundaries would take too long. Exact boundaries are at most
	// nearPages apart, because the query that finds a boundary reads all keys before it.
	FarPages  = 10 * maxExact
	nearPages = FarPages / 8

	// RootPages is the least number of pages of entities in a piece that is cut at samples. Its
	// last page is half full on average. So if pieces have 10 pages, 5% of the pages are
	// unnecessary.
	RootPages = 10

	// samplesPerCut is the number of samples to read for each cut. With 16, the largest of 100
	// pieces has 1.7 times the mean number of entities. With one, it has 4.6 times [simulation].
	// With 32, a job would start later and gain little, because tasks later give away everything
	// above a worker's fair share.
	samplesPerCut = 16

	// samplesPerSharedCut replaces samplesPerCut if several workers share each piece. Such pieces
	// are counted and cut exactly later, so 600 samples in total are enough. A query returns 600
	// keys in two batches.
	samplesPerSharedCut = 6

	// largestSample is the largest number of sampled keys, for the largest kinds. A query takes
	// four seconds to read them.
	largestSample = 50_000

	// unknownPieces is the number of pieces that are cut off the start of a range of unknown size.
	// The first two have up to unknownPage pages of entities each. Each later piece is twice as
	// long as the previous one.
	unknownPieces = 6
	unknownPage   = 10

	// shareParts limits the first piece of a range of unknown size: it is at most 1/shareParts of a
	// worker's fair share.
	shareParts = 20
)

// A Strategy says how a job's ranges are cut. With the zero value, tasks decide where to cut from
// what they measure. Other values imitate other mappers, for comparison. It is stored as JSON in
// the job's record.
type Strategy struct {
	First  int `json:"first,omitempty"`   // number of ranges into which the query is cut at the start
	FanOut int `json:"fan_out,omitempty"` // number of ranges into which the rest is cut after each page
	// Bisect cuts the key space into equal parts, no matter where entities are.
	Bisect bool `json:"bisect,omitempty"`
}

// Validate returns an error if the strategy is invalid.
func (sp Strategy) Validate() error {
	switch {
	case sp == Strategy{}:
		return nil
	case sp.Bisect && (sp.First != 1 || sp.FanOut < 2 || sp.FanOut > MaxFanOut):
		return setting.Errorf("StartOptions.Splitting.First has to be 1, and StartOptions.Splitting.FanOut in [2, "+
			"%d], for StartOptions.Splitting.Bisect; they are %d and %d", MaxFanOut, sp.First, sp.FanOut)
	case sp.First < 1 || sp.First > maxFirst || sp.FanOut < 1 || sp.FanOut > MaxFanOut:
		return setting.Errorf("StartOptions.Splitting.First has to be in [1, %d], and "+
			"StartOptions.Splitting.FanOut in "+
			"[1, %d], or nothing set; they are %d and %d", maxFirst, MaxFanOut, sp.First, sp.FanOut)
	}
	return nil
}

// Adaptive reports whether tasks decide from their measurements where to cut. Otherwise the
// strategy imitates another mapper.
func (sp Strategy) Adaptive() bool { return sp.FanOut == 0 }

// SampleSize returns how many keys to sample for a job's first range.
func (sp Strategy) SampleSize(workers int64) int {
	const fixed, least = 32, 512 // for each fixed shard, as in Beam; and the least in total, as in other mappers
	switch {
	case sp.Bisect || sp.First == 1 && sp.FanOut == 1:
		return 0
	case !sp.Adaptive():
		return min(max(least, fixed*sp.First), largestSample)
	}
	if workers >= 2*MaxFanOut {
		return samplesPerSharedCut * MaxFanOut
	}
	return samplesPerCut * int(min(workers, MaxFanOut))
}

// A Task holds the facts about a task by which it decides where to cut its range. The facts about
// the range are in a [Piece].
type Task struct {
	Root bool // whether the task has just sampled and counted its range
	// Blind says that the database can't count. Then finding a boundary takes as long as reading
	// all keys before it.
	Blind   bool
	Divided bool  // whether the task has already cut its range, and processes the part that it has kept
	Page    int64 // the number of entities in each of the task's pages
}

// MayCut reports whether the task may cut its range before the next page of entities. Usually a
// task cuts its range only once. It may cut again if several workers should share the range, or if
// its size is unknown.
func (t Task) MayCut(s Piece) bool { return !t.Divided || s.Estimate == 0 || s.Workers > 1 }

// Decide returns where a task cuts its range before it processes the next page. The range must have
// more entities than that page.
func (sp Strategy) Decide(s Piece, t Task) CutPlan {
	root, page := t.Root, t.Page
	switch {
	case !t.MayCut(s):
		return CutPlan{}
	case !sp.Adaptive():
		return sp.fixed(s, root, page)
	}
	workers, pages := max(1, s.Workers), (s.Estimate+page-1)/page
	n := min(workers, pages/RootPages, MaxFanOut, int64(len(s.Samples)+1))
	switch {
	case s.Estimate == 0 && t.Blind && !root:
		return blindly(s, workers, unknownPages, page)
	case s.Estimate == 0:
		return ofUnknown(s, page)
	case root && s.Exact && workers > 1 && !t.Blind && s.Estimate < min(workers, MaxFanOut)*page:
		return forFew(s, min(workers, MaxFanOut), page)
	case pages == 1:
		return CutPlan{}
	case t.Blind:
		return blindly(s, workers, pages, page)
	case workers == 1:
		return forOne(s, pages)
	case n > 1 && (root || pages > FarPages && (n > maxExact || pages > n*nearPages)):
		return CutPlan{Pieces: n, Samples: true, First: true}
	}
	return atBoundaries(s, root, workers, page)
}

// Gives reports whether the task may give the end of its range to other workers after a page of
// entities, so that the job ends earlier. [Load.Keep] decides how much.
func (sp Strategy) Gives(t Task) bool {
	return sp.Adaptive() && !t.Blind
}

// Counts returns the limit of the count that the task should make of its range's entities before it
// decides where to cut. It returns 0 if no count is needed. After a count, all pieces except the
// last consist of full pages, and the length of the last one is known.
func (sp Strategy) Counts(s Piece, t Task) int64 {
	if !sp.Adaptive() || t.Root || t.Blind || s.Exact {
		return 0
	}
	if c := sp.Decide(s, t); c.Pieces <= 1 || c.Samples {
		return 0
	}
	return FarPages * t.Page
}

// atBoundaries cuts a range into pieces of about one worker's fair share, but at most nearPages
// each. The boundaries between pieces have to be searched. The argument root says that this is a
// job's first range.
func atBoundaries(s Piece, root bool, workers, page int64) CutPlan {
	pages := (s.Estimate + page - 1) / page
	share := (max(s.FairShare, s.Estimate/workers) + page/2) / page // in full pages; Load.Keep corrects it later
	each := min(max(1, share, (pages+MaxFanOut-1)/MaxFanOut), nearPages) * page
	// Only Google's Firestore emulator has large kinds without samples. There, a query takes as
	// long as several pages of entities.
	if root && len(s.Samples) == 0 && pages >= CountedPages {
		each = max(each, 2*page)
	}
	if s.Exact {
		n := min(max(2, (s.Estimate+each-1)/each), MaxFanOut) // the task of the last piece cuts it again
		return CutPlan{Pieces: n, Keep: each, lengths: slices.Repeat([]int64{each}, int(n-2)), First: true}
	}
	c := s.Give(0, each, each, workers)
	c.First = true
	return c
}

// forFew cuts the range of a job that has less than one page of entities for each worker.
func forFew(s Piece, workers, page int64) CutPlan {
	lengths := shortLengths(s.Estimate, workers, page)
	n := len(lengths)
	if n == 1 {
		return CutPlan{}
	}
	return CutPlan{Pieces: int64(n), Keep: lengths[0], lengths: lengths[1 : n-1], atOnce: MaxFanOut, First: true}
}

// forOne plans a range for one worker. It usually does not cut the range, because the task can give
// work away later, see [Load.Keep].
func forOne(s Piece, pages int64) CutPlan {
	if pages <= FarPages || len(s.Samples) == 0 {
		return CutPlan{}
	}
	return CutPlan{Pieces: min(int64(len(s.Samples)+1), MaxFanOut), Samples: true, First: true}
}

// ofUnknown cuts a range of unknown size into pieces of growing length. If the range is shorter
// than these, there are fewer pieces. If it is longer, the rest after the pieces is halved.
func ofUnknown(s Piece, page int64) CutPlan {
	each := max(1, min(s.FairShare/page/shareParts, unknownPage)) * page
	return CutPlan{Pieces: unknownPieces + 1, Keep: each, lengths: doubling(each, unknownPieces-1), evenly: 2,
		First: true}
}

// doubling returns n lengths, each twice as long as the one before.
func doubling(each int64, n int) (lengths []int64) {
	for range n {
		lengths = append(lengths, each)
		each *= 2
	}
	return lengths
}

// blindly cuts a range at its samples, without a search for boundaries. A range for several workers
// is cut into one part for each. A range for one worker is cut into four parts, if it is long
// enough. Each part has at least two pages of entities, because its last page is half full on
// average.
//
// If a range for several workers has no samples, its task processes one page and gives the rest to
// another task, because it then knows the next key.
func blindly(s Piece, workers, pages, page int64) CutPlan {
	parts := workers
	if workers == 1 {
		parts = 4
	}
	n := min(parts, pages/2, MaxFanOut, int64(len(s.Samples)+1))
	switch {
	case n > 1:
		return CutPlan{Pieces: n, Samples: true, First: workers > 1}
	case workers > 1:
		return CutPlan{Pieces: 2, Keep: page, First: true}
	}
	return CutPlan{}
}

// unknownPages is the assumed number of remaining pages of entities in a range that has turned out
// to be longer than estimated.
const unknownPages = 8

// fixed returns the plan of a strategy that imitates another mapper.
func (sp Strategy) fixed(s Piece, root bool, page int64) CutPlan {
	n := int64(sp.FanOut)
	switch {
	case root && sp.First > 1:
		return CutPlan{Pieces: min(int64(sp.First), int64(len(s.Samples)+1)), Samples: true, First: true}
	case n == 1:
		return CutPlan{}
	case sp.Bisect:
		return CutPlan{Pieces: 2, Keep: page, evenly: sp.FanOut}
	}
	pages := (s.Estimate + page - 1) / page
	if n = min(n, pages); n > 1 && n <= int64(len(s.Samples)) && pages/n >= RootPages {
		return CutPlan{Pieces: n + 1, Keep: page, Samples: true}
	}
	return CutPlan{Pieces: n + 1, Keep: page, lengths: slices.Repeat([]int64{max(1, pages/max(1, n)) * page},
		int(max(0, n-1)))}
}

// gapPages is the mean number of pages of entities between two samples of a large kind. It is less
// than FarPages, so nearly every range of more than FarPages contains samples.
const gapPages = FarPages / 4

// SamplesFor returns how many keys to sample if a kind has turned out to be large. For a billion
// entities it is 25,000 keys, which takes two seconds to read.
func SamplesFor(estimate, page, workers int64) int {
	pages, least := estimate/page, int64(0)
	if pages > MaxFanOut*FarPages { // the pieces will be cut at samples again
		least = samplesPerCut * MaxFanOut
	}
	return int(min(max(least, pages/min(gapPages, max(RootPages, pages/workers))), largestSample))
}
