package split

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// ShedRest decides where a task cuts what is left of its range, as it would end later than
// others, given how long the function ran in this delivery. It keeps the pages that it can do in
// the time that a worker's fair share takes, and leaves the rest to those that are done with theirs.
// Where fair shares have many pages, short ranges at the end do that.
//
// A rest of less than half a page it keeps. But if entities take uneven times some workers
// have time to spare: then they get it, too, and soon.
func (s Piece) ShedRest(page, jobPage int64, ran time.Duration, pace pace.Throughput) CutPlan {
	each, uneven := pace.Each(), pace.Uneven()
	if !s.fewPagesEach(jobPage) || each == 0 {
		return CutPlan{}
	}
	due := time.Duration(s.FairShare)*each - ran
	if !uneven {
		due += each * time.Duration(page) / 2 // to the next page
	}
	keep := max(1, int64(due/(each*time.Duration(page)))) * page
	rest := s.Estimate - keep
	if rest <= 0 || rest < page/2 && (!uneven || time.Duration(rest)*each < worthTask) {
		return CutPlan{}
	}
	return CutPlan{Pieces: 2, Keep: keep, each: keep, First: uneven, ownShare: true}
}

// ShedLast decides whether a task shares its last page, as it would end much later than others:
// by a sixth of what a worker's fair share takes. That is for entities that take uneven times.
func (s Piece) ShedLast(page, jobPage int64, ran time.Duration, pace pace.Throughput) CutPlan {
	each := pace.Each()
	if !s.fewPagesEach(jobPage) || !s.Exact || !pace.Uneven() || s.Estimate < page/2 ||
		time.Duration(s.Estimate/2)*each < worthTask || ran+time.Duration(s.Estimate)*each < time.Duration(s.FairShare)*each*7/6 {
		return CutPlan{}
	}
	return CutPlan{Pieces: 2, Keep: s.Estimate / 2, each: s.Estimate / 2, First: true, ownShare: true}
}

// worthTask is how long the function has to take for entities that are given to another worker out
// of turn: a task and two commits take about as long.
const worthTask = 200 * time.Millisecond

// fewPagesEach reports whether a worker's fair share has few pages.
func (s Piece) fewPagesEach(jobPage int64) bool {
	return s.FairShare > 0 && s.FairShare <= FewPages*jobPage
}
