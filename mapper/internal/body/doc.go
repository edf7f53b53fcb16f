// Package body defines the bodies of tasks: [Range] for a range's task, and [Job] for a task of a
// whole job. A body names the range or the job, and has nothing of its contents.
package body
