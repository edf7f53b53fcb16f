// Package dashboard serves web pages that show the jobs of an engine, and start and control them.
// There is a list of jobs and a form that starts one. The page of a job has a picture of its ranges
// in the key space, and links to its failures and to a replay of its progress.
//
// Mount it beside the engine's own handler, at any path that ends with a slash, with or without
// http.StripPrefix:
//
//	mux.Handle("/mapper/", engine.Handler()) // Cloud Tasks
//	pages := dashboard.NewHandler(engine, &dashboard.Options{Allow: verifier.Authenticate})
//	mux.Handle("/dashboard/", pages) // people
//
// Without [Options.Allow] every request is refused, as in package jobsapi. With [Options.ReadOnly]
// the pages change nothing. Package jobsapi has the same controls for programs.
//
// The pages work without JavaScript. With it they refresh every two seconds while a job runs. Each
// piece of data is read at most once in two seconds, for any number of viewers.
//
// # Addresses
//
// The last part of the path and the parameters choose the page. GET changes nothing.
//
//	./                          the jobs: ?state= &mapper= &name= (a part of the ID) &all=true (of
//	                            all queues) &cursor=, &from= and &before= (2026-10-24,
//	                            2026-10-24T15:04 or RFC 3339, in UTC), and &sort= orders a page:
//	                            id, state, progress, failures or cost
//	./job?id=ID                 a job: &colour=state, pace, attempts or time
//	./range?job=ID&range=RANGE  one of its ranges
//	./failures?id=ID            its failures: &cursor=
//	./examples?id=ID            what a rehearsal would change
//	./left?id=ID                what an undo has not undone: &cursor=
//	./replay?id=ID              how the job unfolded: &frame=1 to 30
//	./replay.svg?id=ID          the same, animated
//	./start                     the mappers: ?mapper=NAME for the form of one, and ?clone=ID for
//	                            the form with the settings of a job
//	./act?do=VERB&id=ID         asks before it acts: pause, resume, retry, rate, budget, abort,
//	                            undo, move, verify, clean-up
//
// Forms post to ./act with do, one or more id, and a reason. Abort, undo, move, verify and clean-up
// also need confirmed=yes. A retry takes cause, or "of": the first 16 hexadecimal digits of the
// cause's SHA-256. Rate takes rate (entities), writes and calls a second, ramp=on, and for, a
// duration such as 2h. Budget takes budget (dollars) and operations. An absent limit is no limit.
// Clean-up takes failures=on and record=on. An undo takes rehearsal=on. The form that starts a job
// posts its fields to ./start, with do=plan or do=start. A request that a browser sends from
// another site is refused.
//
// # JSON
//
// A page is JSON if the request accepts application/json before text/html, or has ?format=json.
// These names are stable:
//
//	./         {"jobs": [{"id", "mapper", "queue", "state", "error", "why", "created", "ended",
//	           "counted", "processed", "failures", "dollars", "progress"}], "next", "searched",
//	           "counts": {STATE: N}}: fields of mapper.JobInfo. For a job that has not
//	           succeeded, the values are from its mapper.Status; "progress" and "why" are
//	           present until a job has ended. "searched" is how many jobs were compared
//	           with name. "counts" counts the jobs of all pages, and ignores the filters
//	           state and name
//	./job      {"status", "causes", "history", "ranges", "estimated", "series", "levels", "pages",
//	           "kept"}: status is mapper.Status, and ranges are picture.Picture.Ranges with start
//	           and end as texts; for series, levels and pages see package picture; kept is
//	           false if the records of the ranges are deleted
//	./range    {"job", "range"}: picture.Detail, with start and end as texts
//	./failures {"failures": [{"key", "error", "attempts", "time"}],
//	           "causes": [{"cause", "count", "estimated", "example"}], "next"}
//	./examples {"examples": [{"key", "what", "properties": [{"name", "before", "after"}]}]}
//	./left     {"left": [{"key", "why"}], "next"}
//	./replay   {"times": [...], "frames": ["..."], "ranges"}: a letter for each range in each frame:
//	           u for not cut off, p for pending, r for running, d for done, s for slow and
//	           f for failed
//	./start    {"mappers": [{"name", "visit", "description", "fields": [{"name", "kind",
//	           "optional", "required"}]}]}: the field NAME is posted as p.NAME; a POST answers
//	           {"plan"} (mapper.Estimate) or {"id"}
//	./act      {"do", "jobs", "left_out": [{"id", "error"}], "warns"}: left_out has the jobs whose
//	           state does not allow the action, and warns says why the action must be
//	           confirmed; a POST answers {"done": [ID...], "failed": [{"id", "error"}]}, and
//	           for verify {"proof"} (mapper.Proof)
//
// An error is {"error"}, with the HTTP status that fits. A key is the text of its path, such as
// /Account,"ann". [Options.Redact] applies to JSON and to pages.
package dashboard
