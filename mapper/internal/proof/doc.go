// Package proof checks the records of a job against each other, and against the entities of its
// query.
package proof
