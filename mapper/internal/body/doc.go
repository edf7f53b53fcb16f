// Package body defines the bodies of the HTTP requests for tasks: [Range] for a range's task, and
// [Job] for a task of a whole job.
package body
