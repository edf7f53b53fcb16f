// Package split decides where a range is cut: how many pieces it is cut into, where they begin, and
// how many workers share each. It knows samples of keys, counts and estimates, and asks for exact
// boundaries by a Finder. It has neither a client nor a clock.
//
// [Strategy.Decide] makes a [CutPlan] for a [Piece], which is a range as splitting sees it, of what
// is known of its [Task]; the plan is applied to the piece. The estimate comes from positions of
// known [Rank].
package split
