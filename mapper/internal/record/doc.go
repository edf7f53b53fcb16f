// Package record has what is kept of jobs and ranges, and what may become of it: how a range is
// made, cut, tried again and ended, how a job goes on and succeeds, and when a delivery's process
// is taken for dead. A transition is a method that changes a record in memory; packages executor
// and lifecycle carry it out, in transactions of package store. Package ledger adds the records up.
package record
