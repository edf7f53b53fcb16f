// Package body has the bodies of tasks: a [Range] is that of a range's task, and a [Job] that of a
// task which is about a whole job. They name what the task is for, and nothing of its contents.
package body
