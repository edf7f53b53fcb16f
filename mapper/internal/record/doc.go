// Package record has the records of jobs and ranges, and their transitions. These say how a range
// is made, cut, retried and ended, how a job goes on and ends, and when a process is taken for
// dead.
//
// A transition is a method that changes a record in memory. Package executor stores it in the
// conditional commit of a page, package lifecycle in transactions. Package ledger adds the records
// up.
package record
