// Package record defines the records of jobs and ranges, and their allowed changes, called
// transitions. A range is a part of a job's query that one task processes. Transitions say how a
// range is made, cut, retried and ended, and how a job starts, continues and ends. They also say
// when a process counts as dead.
//
// A transition is a method that changes a record in memory. Package executor stores the changed
// record in the conditional commit of a page, and package lifecycle in transactions. Package ledger
// adds up the records.
package record
