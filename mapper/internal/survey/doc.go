// Package survey finds out how many entities a query has and where they lie. It uses samples,
// positions of known rank, and counts. It serves the root of a job, a plan, and [Boundaries]
// between parts of equal size. It learns about a query only by calls of its source.
package survey
