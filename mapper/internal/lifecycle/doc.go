// Package lifecycle controls whole jobs. [Jobs] starts, pauses, resumes, retries, aborts, completes
// and cleans up jobs, runs their finalizers, and sweeps for lost tasks.
//
// Package record decides which changes of a job are allowed. This package has the transactions for
// them. It also has the tasks that are about a whole job and not about one range. Each of these
// tasks does a limited part of the work, and enqueues the next one.
package lifecycle
