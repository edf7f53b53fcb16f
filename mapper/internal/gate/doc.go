// Package gate decides when tasks may start in a process: many at the same time, or one alone. A
// task runs alone if it may have killed the process that ran it before. If the process then dies
// again, this task is the cause.
package gate
