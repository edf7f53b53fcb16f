// Package executor runs the tasks of ranges. Read delivery.go first: it has all steps in their
// order, and calls the other files.
//
// A delivery of a task processes a range page by page. It reads the keys of a page, and gives a
// part of the range to idle workers. It runs the user's function on the page, and commits the
// result together with the range's record in one call. Then it continues with the rest.
//
// Meanwhile, another delivery of the same task may change the records, and so may an operator who
// stops the job. A standing says what a delivery has found, see standing.go. Package split decides
// where ranges are cut. Package record computes the new records at a page's end (Range.Commit).
package executor
