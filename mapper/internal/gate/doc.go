// Package gate lets the tasks of a process run beside each other, or one of them exclusively: so
// that a death of the process can be put down to what ran.
package gate
