// Package tally adds up a job's counters: the named numbers that users' functions count. The sums
// are exact, in any order of additions. A page, a process and a job have the same limit on the
// number of counters.
package tally
