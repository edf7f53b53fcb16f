// Package gate lets the tasks of a process run at the same time, or one of them exclusively. If a
// process dies while a task runs exclusively, that task is to blame.
package gate
