// Package survey finds out how many entities a query has, and where they lie in the order of keys.
// It uses random samples, counts, and positions with a known number of entities before them. It is
// used for the first range of a job, for plans, and for [Boundaries], which cuts a query into parts
// of equal size. Package source makes all calls to the database.
package survey
