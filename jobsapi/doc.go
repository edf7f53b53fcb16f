// Package jobsapi serves the jobs of an engine over HTTP, to operators and to programs that start
// jobs, such as a scheduler. A service mounts it beside the engine's own handler:
//
//	api, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: verifier.Authenticate})
//	...
//	mux.Handle("/mapper/", engine.Handler()) // Cloud Tasks
//	mux.Handle("/jobs", api)                 // operators
//	mux.Handle("/jobs/", api)
//
// It is closed by default: without [Options.Allow] every request is refused.
//
// Requests and answers are JSON. docs/jobs-api.md has examples, and all fields:
//
//	POST /jobs                 starts a job, or finds it by its ID
//	POST /jobs/plan            estimates a job, and starts none
//	GET  /jobs/mappers         lists the mappers, with their parameters
//	GET  /jobs                 lists jobs, the newest first
//	GET  /jobs/ID              returns a job's status: mapper.Status
//	GET  /jobs/ID/failures     lists failed entities: mapper.Failure
//	GET  /jobs/ID/causes       groups the failures by cause: mapper.FailureCause
//	GET  /jobs/ID/left         lists the entities that an undo did not restore: mapper.NotUndone
//	GET  /jobs/ID/examples     shows what a rehearsal would change: mapper.Example
//	GET  /jobs/ID/history      lists who did what to the job: mapper.HistoryEntry
//	POST /jobs/ID/pause        stops the job before its next pages
//	POST /jobs/ID/resume       continues a paused or failed job
//	POST /jobs/ID/abort        ends a job permanently
//	POST /jobs/ID/retry        processes the failures again
//	POST /jobs/ID/undo         starts a job that restores what this one changed
//	POST /jobs/ID/move         moves the job to a queue of this service
//	POST /jobs/ID/rate         sets the rate limit
//	POST /jobs/ID/budget       limits the cost from now on
//	POST /jobs/ID/clean-up     deletes the job's records
//	POST /jobs/ID/verify       checks that the records cover the query: mapper.Proof
//
// A POST may have a reason, ?reason=TEXT, which is kept in the job's history and logged with the
// caller. Requests can be repeated safely: a start must have an ID, and a second start with the ID
// returns the same job. A POST that a browser sends from another site's page is refused. A body has
// up to 1 MiB, and must arrive within 10 s. Unknown parameters and fields are refused.
//
// A refused request is answered with {"error"}, and the code
//
//   - 400 if the request is wrong,
//   - 401 or 403 if the caller is not allowed,
//   - 404 if no job has the ID,
//   - 409 if the job is in the wrong state, in another queue, or of a newer build, or if a start
//     has the ID of a job with other arguments,
//   - 500 if the service failed: {"error", "request"}. The error has only causes that callers may
//     see. The log has the whole error, in a line with the same "request".
//
// An unknown number is -1 in every answer.
package jobsapi
