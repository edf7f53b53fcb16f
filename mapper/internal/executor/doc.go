// Package executor runs the tasks of ranges: a delivery of one reads the keys of a page, cuts off
// what others should do, runs the user's function over the page, commits it with the record of its
// range in one transaction, and goes on with what is left. Read delivery.go first: it has all
// steps, in their order.
//
// What a delivery finds changed, by another one of the same task or by somebody who has stopped the
// job, is a standing, see fence.go. Where ranges are cut decides package split; what a record may
// become, package record.
package executor
