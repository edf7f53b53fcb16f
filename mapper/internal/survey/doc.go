// Package survey finds out how many entities a query has and where they lie in the order of keys.
// It uses samples, positions whose rank is known, and counts. It serves the first range of a job, a
// plan, and [Boundaries], which cuts a query into parts of equal size. It calls the database only
// through a source.
package survey
