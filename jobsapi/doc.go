// Package jobsapi serves the jobs of an engine over HTTP: to operators, who start and control them
// and see how they stand, and to whatever starts jobs for them, such as a schedule. A service
// mounts it beside the engine's own handler:
//
//	api, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: verifier.Allow})
//	...
//	mux.Handle("/mapper/", engine.Handler()) // Cloud Tasks
//	mux.Handle("/jobs", api)                 // operators
//	mux.Handle("/jobs/", api)
//
// It is closed by default: [Options.Allow] says who may do anything, and nobody may without it.
// Requests and answers are JSON:
//
//	POST /jobs                 starts a job, or finds it: {"mapper", "id", "query", "params"}, and the
//	                           settings of mapper.StartOptions under their names there ("page_size",
//	                           "queue", "rate", ...). params are {} for a mapper that takes none; a query
//	                           is {"kind", "namespace", "filters"}, and a filter {"property": "seen",
//	                           "op": "<", "value": {"time": "2026-10-24T00:00:00Z"}}, see mapper.Filter
//	POST /jobs/plan            estimates what such a job would take, and starts none: mapper.Estimate.
//	                           "per_entity_ns" is how long the function takes for an entity, and
//	                           "writes" how many entities it writes for each
//	GET  /jobs                 lists jobs, the one that was started last first:
//	                           ?state=running&mapper=add-credit; all=true lists those of other queues, too
//	GET  /jobs/ID              tells how a job stands: mapper.Status
//	GET  /jobs/ID/failures     lists its failures: mapper.Failure
//	GET  /jobs/ID/causes       lists their causes, with counts and an example of each: mapper.FailureCause
//	GET  /jobs/ID/left         lists what an undo has left as it is: mapper.NotUndone
//	GET  /jobs/ID/examples     lists what a rehearsal would do to some entities, before and after: mapper.Example
//	GET  /jobs/ID/history      lists what was done to it, by whom and why: mapper.HistoryEntry
//	POST /jobs/ID/pause        has it begin no more pages
//	POST /jobs/ID/resume       has it go on
//	POST /jobs/ID/abort        ends it
//	POST /jobs/ID/retry        has it process its failures again; ?cause=TEXT those of one cause
//	POST /jobs/ID/undo         starts a job that takes back what it has written: the settings of
//	                           mapper.StartOptions, or nothing
//	POST /jobs/ID/move         has it belong to a queue of this service
//	POST /jobs/ID/rate         sets how fast it goes: {"entities", "writes", "ramp"}, see mapper.Rate;
//	                           "for_ns" is for how long; {"entities": -1} lifts the limits
//	POST /jobs/ID/clean-up     has its records deleted: {"failures", "job", "expire_ns"}, see
//	                           mapper.CleanUpOptions
//
// A POST may have a reason, ?reason=TEXT, which is kept in the job's history and logged with who
// has asked.
//
// Lists have pages: "next", if there is one, is the cursor of the next: ?cursor=NEXT. Whatever is
// about one job answers with its status, or else with {"error"}: 400 for a request that is wrong,
// 401 or 403 for one that is not allowed, 404 for a job that there is not, and 409 for one that is
// in another state, belongs to another queue, or was started with other arguments. What a browser
// sends from another site's page changes nothing.
package jobsapi
