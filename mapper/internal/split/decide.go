package split

// A Task is what is known about a task, besides its piece, when it decides where to cut the piece.
type Task struct {
	Root    bool  // it has just surveyed the piece
	Blind   bool  // the database can't count: finding a boundary takes as long as reading everything before it
	Divided bool  // it has cut its piece before, and processes the part that it kept
	Page    int64 // how many entities its pages have
}

// MayCut reports whether the task may cut the piece by a plan. A task does so once. It does so
// again if the piece is for several workers, or if its size is unknown.
func (t Task) MayCut(s Piece) bool { return !t.Divided || s.Estimate == 0 || s.Workers > 1 }

// Gives reports whether a task gives away the part of its piece that would make it end late, see
// [Load.Keep].
func (sp Strategy) Gives(t Task) bool {
	return sp.Adaptive() && !t.Blind
}

// Counts returns the limit up to which a piece is counted before the task decides; 0: it is not
// counted. Once a piece is counted, all of its parts but the last are full, and the last one's
// length is known.
func (sp Strategy) Counts(s Piece, t Task) int64 {
	if !sp.Adaptive() || t.Root || t.Blind || s.Exact {
		return 0
	}
	if c := sp.Decide(s, t); c.Pieces <= 1 || c.Samples {
		return 0
	}
	return FarPages * t.Page
}

// Beyond returns the piece after the task has found more than a page of entities in it. If the
// estimate was at most a page, it was too low, and becomes unknown.
func (s Piece) Beyond(page int64) Piece {
	if s.Estimate <= page {
		s.Estimate, s.Exact = 0, false
	}
	return s
}
