// Package store reads and writes the records of jobs and ranges. A [Store] loads records, changes
// them in transactions, and iterates over a job's records. The first records of a job are a random
// sample, because their names are hashes.
//
// Package record decides which changes are allowed.
package store
