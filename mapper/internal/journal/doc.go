// Package journal says what becomes of jobs, to those who look: a [Journal] writes one line for
// each change of a job's state, and calls a hook of the user. Neither holds up or harms a job.
// [Limited] keeps the lines about what goes wrong on the way to a few in a minute.
package journal
