// Package tally adds up counters exactly, in whatever order and in whatever parts they come, up to
// a limit that is the same for a page, for a process and for a job.
package tally
