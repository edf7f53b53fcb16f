// Package gate decides when tasks may start in a process: many at the same time, or one alone. A
// task that is suspected of killing its process runs alone. If the process then dies, this task is
// the cause.
package gate
