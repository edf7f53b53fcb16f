// Package store reads and writes the records of jobs and ranges in Datastore. A [Store] loads
// records, changes them in transactions, and iterates over the records of a job's ranges. These
// have hashes as names, so the first records of a job are a random sample.
//
// Package record decides which changes are allowed.
package store
