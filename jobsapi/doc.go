// Package jobsapi serves the jobs of an engine over HTTP. Operators use it to start, watch and
// control jobs; schedulers use it to start them. A service mounts it beside the engine's own
// handler:
//
//	api, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: verifier.Allow})
//	...
//	mux.Handle("/mapper/", engine.Handler()) // Cloud Tasks
//	mux.Handle("/jobs", api)                 // operators
//	mux.Handle("/jobs/", api)
//
// It lets nobody in unless [Options.Allow] does. Requests and answers are JSON, which
// docs/jobs-api.md describes field by field:
//
//	POST /jobs                 start a job, or find it: {"mapper", "id", "query", "params"}, and settings
//	                           of mapper.StartOptions under their JSON names, such as "page_size"
//	POST /jobs/plan            estimate what such a job would take, without starting it: mapper.Estimate
//	GET  /jobs                 list jobs, the last started first: ?state=running&mapper=add-credit;
//	                           all=true includes the jobs of other queues
//	GET  /jobs/ID              get a job's status: mapper.Status
//	GET  /jobs/ID/failures     list its failures: mapper.Failure
//	GET  /jobs/ID/causes       list the causes of its failures, with counts: mapper.FailureCause
//	GET  /jobs/ID/left         list what an undo has not undone: mapper.NotUndone
//	GET  /jobs/ID/examples     list what a rehearsal would change, before and after: mapper.Example
//	GET  /jobs/ID/history      list who did what to the job, when and why: mapper.HistoryEntry
//	POST /jobs/ID/pause        start no more pages
//	POST /jobs/ID/resume       go on
//	POST /jobs/ID/abort        end the job
//	POST /jobs/ID/retry        process the failures again; ?cause=TEXT only those of one cause
//	POST /jobs/ID/undo         start a job that undoes this one: settings of mapper.StartOptions, or nothing
//	POST /jobs/ID/move         give the job to a queue of this service
//	POST /jobs/ID/rate         limit the job: {"entities", "writes", "ramp"} of mapper.Rate; "for_ns"
//	                           limits the duration; {"entities": -1} lifts the limits
//	POST /jobs/ID/clean-up     delete its records: {"failures", "job", "expire_ns"} of mapper.CleanUpOptions
//
// In POST /jobs, params are {} for a mapper that takes none. A query is {"kind", "namespace",
// "filters"}, and this is a filter, see mapper.Filter:
//
//	{"property": "seen", "op": "<", "value": {"time": "2026-10-24T00:00:00Z"}}
//
// POST /jobs/plan also takes "per_entity_ns", how long the function takes for an entity, and
// "writes", how many entities it writes for each.
//
// Every POST takes a reason, ?reason=TEXT. The job's history and the log keep it, with the caller.
//
// A list has pages: if the answer has "next", pass it as ?cursor=NEXT for the next page. A request
// about one job answers with its status. An error answers {"error"} and a code:
//
//   - 400: the request is wrong
//   - 401: no valid token
//   - 403: a valid token of another account, or a browser's request from another site
//   - 404: no such job
//   - 409: the job is in another state, belongs to another queue, or has other arguments
package jobsapi
