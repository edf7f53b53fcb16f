// Package store keeps the records of jobs and ranges: a [Store] loads them, changes them in
// transactions, and goes through those of a job, all of them or the first few, which are a random
// choice. What a record may become, package record decides.
package store
