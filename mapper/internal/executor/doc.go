// Package executor runs the tasks of ranges. Read delivery.go first: it has all steps in their
// order, and calls the other files.
//
// A delivery of a task works through a range page by page. It reads the keys of a page and gives
// part of the range to idle workers. It runs the user's function over the page, and commits the
// result together with the range's record in one call. Then it goes on with the rest.
//
// Another delivery of the same task, or an operator who stops the job, may change the records
// meanwhile. A standing says what a delivery has found, see standing.go. Package split decides
// where ranges are cut. Package record computes the new records at a page's end (Range.Commit).
package executor
