// Package lifecycle carries out what becomes of whole jobs: [Jobs] starts, pauses, resumes,
// retries, aborts, completes, finalizes and cleans them up, and sweeps for tasks that are lost.
// What a job may become is decided by package record; here are the transactions, and the tasks that
// are about a job and not about one of its ranges. Each of these does a bounded part, and enqueues
// the next.
package lifecycle
