// Package survey finds out how many entities a query has and where they lie, from samples,
// positions of known rank, and counts: for the root of a job, for a plan, and for [Boundaries]
// between parts of equal size. It knows of a query only what its source answers.
package survey
