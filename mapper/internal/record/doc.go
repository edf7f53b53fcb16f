// Package record has the records of jobs and ranges, and their transitions. These say how a range
// is made, cut, retried and ended, how a job goes on and ends, and when a process is taken for
// dead.
//
// A transition is a method that changes a record in memory. Packages executor and lifecycle carry
// it out, in transactions of package store. Package ledger adds the records up.
package record
