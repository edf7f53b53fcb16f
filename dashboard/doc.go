// Package dashboard serves pages that show the jobs of an engine to people, and take their orders:
// a list of jobs, a job with a picture of its key space, one of its ranges, its failures, its
// replay, and a form that starts one. A service mounts it beside the engine's own handler, at any
// path that ends with a slash, with or without http.StripPrefix:
//
//	mux.Handle("/mapper/", engine.Handler()) // Cloud Tasks
//	mux.Handle("/dashboard/", dashboard.NewHandler(engine, &dashboard.Options{Allow: verifier.Allow})) // people
//
// It is closed by default: [Options.Allow] says who may see and do anything, as that of package
// jobsapi does, and nobody may without it. [Options.ReadOnly] has it refuse everything but looking.
// It shows what package mapper tells, and does what that does: there is nothing here that the jobs
// API can't.
//
// The pages need no JavaScript: with it they renew themselves every two seconds while a job runs.
// All that is asked within these two seconds is read once, however many people look.
//
// # Addresses
//
// The last part of the path, and the parameters, say what is shown. GET changes nothing.
//
//	./                          the jobs: ?state= &mapper= &name= &all=true &cursor=
//	./job?id=ID                 a job: &colour=state, pace, attempts or time
//	./range?job=ID&range=RANGE  one of its ranges
//	./failures?id=ID            its failures: &cursor=
//	./examples?id=ID            what a rehearsal would do to some entities
//	./left?id=ID                what an undo has left as it is: &cursor=
//	./replay?id=ID              how it unfolded: &frame=1 to 30
//	./replay.svg?id=ID          the same, animated
//	./start                     what can be started: ?mapper=NAME
//	./act?do=VERB&id=ID         asks before it is done: pause, resume, retry, rate, abort, undo, move,
//	                            verify, clean-up
//
// Orders are posted, by forms: to ./act with do, one or more id, a reason, and confirmed=yes for
// abort, undo, move, verify and clean-up. A retry takes a cause, or the hash of one as of; rate
// takes rate, writes, ramp=on and for, and what is absent is no limit; clean-up takes failures=on
// and record=on. Forms that start a job are posted to ./start, with their fields, and do=plan or
// do=start. A request that a browser has sent from another site is refused.
//
// # JSON
//
// Each page is JSON for a request that accepts application/json before text/html, or with
// ?format=json. These names stay:
//
//	./         {"jobs": [{"id", "mapper", "queue", "state", "error", "why", "created", "ended",
//	           "counted", "processed", "failures", "dollars", "progress"}], "next", "searched"}: those of
//	           mapper.JobInfo, or, of up to 20 jobs that have not succeeded, those of mapper.Status,
//	           whose "progress" and "why" are there while a job has not ended
//	./job      {"status", "causes", "history", "ranges", "estimated", "series", "levels", "pages",
//	           "kept"}: status is mapper.Status, ranges are those of picture.Picture, with bounds as
//	           texts, and series, levels and pages are those of package picture
//	./range    {"job", "range"}: picture.Detail, with bounds as texts
//	./failures {"failures": [{"key", "error", "attempts", "time"}],
//	           "causes": [{"cause", "count", "estimated", "example"}], "next"}
//	./examples {"examples": [{"key", "what", "properties": [{"name", "before", "after"}]}]}
//	./left     {"left": [{"key", "why"}], "next"}
//	./replay   {"times": [...], "frames": ["..."], "ranges"}: a letter for each range in each frame:
//	           u for uncut, p for pending, r for running, d for done, s for slow and f for failed
//	./start    {"mappers": [{"name", "visit", "fields": [{"name", "kind", "optional"}]}]}: the field NAME is posted
//	           as p.NAME; posted, {"plan"} (mapper.Estimate) or {"id"}
//	./act      {"do", "jobs", "warns"}; posted: {"done": [ID...], "failed": [{"id", "error"}]}, and
//	           for verify {"proof"} (mapper.Proof)
//
// An error is {"error"}, with the code of its answer. A key is the text of its path, such as
// /Account,"ann". [Options.Redact] applies to JSON as to pages.
package dashboard
