// Package body defines the bodies of the HTTP requests that the queue sends. A [Range] is for a
// task that works on a range, a part of a job's query. A [Job] is for a task about a whole job.
package body
