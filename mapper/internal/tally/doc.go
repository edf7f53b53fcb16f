// Package tally adds up a job's counters exactly, in any order and in any parts. A page, a process
// and a job have the same limit of counters.
package tally
