// Package gate lets the tasks of a process run at the same time, or one of them exclusively. If the
// process dies while a task runs exclusively, that task is the cause.
package gate
