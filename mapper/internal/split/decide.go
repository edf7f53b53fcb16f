package split

// A Task is what is known of a task, besides its piece, when it decides where that is cut.
type Task struct {
	Root    bool  // it has just surveyed the piece
	Blind   bool  // the database does not count: to find a boundary takes what it takes to read what is before it
	Divided bool  // it has gone on with the piece, which is what it kept for itself
	Page    int64 // how many entities its pages have
}

// MayCut reports whether the task cuts the piece by a plan: once, and again if it is for several
// workers, or of unknown size.
func (t Task) MayCut(s Piece) bool { return !t.Divided || s.Estimate == 0 || s.Workers > 1 }

// Decide says where a task cuts a piece of which more than a page is left, before it does that
// page.
func (sp Strategy) Decide(s Piece, t Task) CutPlan {
	if t.MayCut(s) {
		return sp.plan(s, t)
	}
	return CutPlan{}
}

// Gives reports whether a task gives away of its piece what it would end late with, see
// [Load.Keep].
func (sp Strategy) Gives(t Task) bool {
	return sp.Adaptive() && !t.Blind
}

// Counts returns up to how many entities of a piece are to be counted before a task decides; 0 is
// none. In a piece that was counted all parts but the last one are full, and its length is known.
func (sp Strategy) Counts(s Piece, t Task) int64 {
	if !sp.Adaptive() || t.Root || t.Blind || s.Exact || !t.MayCut(s) {
		return 0
	}
	if c := sp.plan(s, t); c.Pieces <= 1 || c.Samples {
		return 0
	}
	return FarPages * t.Page
}

// Beyond returns the piece once more than a page of it has been seen: an estimate of no more was
// too low, and is forgotten.
func (s Piece) Beyond(page int64) Piece {
	if s.Estimate <= page {
		s.Estimate, s.Exact = 0, false
	}
	return s
}
