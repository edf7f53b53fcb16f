// Package split decides where a range is cut: how many pieces it is cut into, where they begin, and
// how many workers share each. It knows samples of keys, counts and estimates, and asks for exact
// boundaries by a Finder. It has neither a client nor a clock.
//
// A [Strategy] makes a [CutPlan] for a [Piece], which is a range as splitting sees it; the plan is
// applied to that. The estimate comes from positions of known [Rank].
package split
