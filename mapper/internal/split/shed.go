package split

import (
	"time"
)

// shedRest plans for a task that would end later than others. The function ran for a while in this
// delivery; the task keeps the pages that still fit the time that a worker's fair share takes, and
// leaves the others to workers that are done with theirs. It does so only where fair shares have few
// pages: elsewhere the short ranges at the end even the times out.
//
// The task keeps a remainder under half a page, unless entities take uneven times: then idle workers
// get it at once.
func (s Piece) shedRest(t Task) CutPlan {
	page, each, uneven := t.Page, t.Seen.Each(), t.Seen.Uneven()
	if !s.fewPagesEach(t.Usual) || each == 0 {
		return CutPlan{}
	}
	due := time.Duration(s.FairShare)*each - t.Ran
	if !uneven {
		due += each * time.Duration(page) / 2 // to the next page
	}
	keep := max(1, int64(due/(each*time.Duration(page)))) * page
	rest := s.Estimate - keep
	if rest <= 0 || rest < page/2 && (!uneven || time.Duration(rest)*each < WorthTask) {
		return CutPlan{}
	}
	return CutPlan{Pieces: 2, Keep: keep, each: keep, First: uneven, ownShare: true}
}

// shedLast plans for the last page of a task. If entities take uneven times, and the task would end
// late by a sixth of the time that a worker's fair share takes, it leaves half of the page to others.
func (s Piece) shedLast(t Task) CutPlan {
	each := t.Seen.Each()
	if !s.fewPagesEach(t.Usual) || !s.Exact || !t.Seen.Uneven() || s.Estimate < t.Page/2 ||
		time.Duration(s.Estimate/2)*each < WorthTask || t.Ran+time.Duration(s.Estimate)*each < time.Duration(s.FairShare)*each*7/6 {
		return CutPlan{}
	}
	return CutPlan{Pieces: 2, Keep: s.Estimate / 2, each: s.Estimate / 2, First: true, ownShare: true}
}

// WorthTask is how long the function has to take on entities that are worth a task of their own: the
// task and its two commits take about as long.
const WorthTask = 200 * time.Millisecond

// fewPagesEach reports whether a worker's fair share has few pages.
func (s Piece) fewPagesEach(jobPage int64) bool {
	return s.FairShare > 0 && s.FairShare <= FewPages*jobPage
}
