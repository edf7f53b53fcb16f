// Package split decides where a range is cut: into how many pieces, where they start, and how many
// workers share each. A range is an interval of keys or values, which a task processes page by
// page. A page is a group of entities that commit together. The package decides from samples of
// keys, from counts and from estimates. It uses neither a database nor a clock, and calls a
// [Finder] to find exact boundaries.
//
// [Strategy.Decide] makes a [CutPlan] from a [Piece] and a [Task]. A Piece is a range as this
// package sees it. A Task holds the facts about the task that cuts it. [CutPlan.Apply] then cuts
// the piece. Sizes are estimated from positions with a known number of entities before them (a
// [Rank]).
package split
