// Package tally adds up a job's counters: numbers that users' functions count under names. The sums
// are exact, in any order of additions. A page of entities, a process and a whole job have the same
// limit on the number of counters.
package tally
