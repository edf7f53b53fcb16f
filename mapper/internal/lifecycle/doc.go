// Package lifecycle controls whole jobs. [Jobs] starts, pauses, resumes, retries, aborts,
// completes, finalizes and cleans them up, and sweeps for lost tasks.
//
// Package record decides what a job may become. This package has the transactions, and the tasks
// that are about a job and not about one of its ranges. Each task does a limited part of the work,
// and enqueues the next one.
package lifecycle
