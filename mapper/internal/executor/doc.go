// Package executor runs the tasks of ranges: a delivery of one reads the keys of a page, cuts off
// what others should do, runs the user's function over the page, commits it with the record of its
// range in one call, and goes on with what is left. Read delivery.go first: it has all steps, in
// their order, and calls what stands in the other files.
//
// What a delivery finds changed, by another one of the same task or by somebody who has stopped the
// job, is a standing, see fence.go. Package split decides where ranges are cut, and package record
// what a page's end makes of records (Range.Commit).
package executor
