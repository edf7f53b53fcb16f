// Package split decides where a range is cut: into how many pieces, where they start, and how many
// workers share each. It decides from samples of keys, counts and estimates, and asks a [Finder]
// for exact boundaries. It has neither a client nor a clock.
//
// [Strategy.Decide] makes a [CutPlan] from a [Piece] and a [Task]. A Piece is a range as this
// package sees it; a Task is what is known about the task that cuts it. [CutPlan.Apply] then cuts
// the piece. Estimates come from positions with a known number of entities before them ([Rank]).
package split
