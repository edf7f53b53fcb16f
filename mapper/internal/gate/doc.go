// Package gate admits tasks to a process, many at a time or one alone. A task suspected of killing
// its process runs alone. If the process then dies, that task is the cause.
package gate
