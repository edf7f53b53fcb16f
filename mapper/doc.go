// Package mapper runs a Go function over every entity of a Datastore query, in parallel, on Cloud
// Tasks.
//
//	var AddCredit = mapper.Update("add-credit",
//		func(ctx context.Context, a *mapper.Entity[Account], p Credit) error {
//			a.Value.Balance += p.Amount
//			return nil
//		})
//
//	job, err := AddCredit.Start(ctx, engine, mapper.Query{Kind: "Account"}, Credit{10},
//		&mapper.StartOptions{ID: "spring"})
//
// A mapper is a named function. A job is one run of a mapper over a [Query]. An [Engine] starts
// jobs and runs their tasks. A range is an interval of keys. A page is the entities of a range that
// commit together, up to 500.
//
// # Define a mapper
//
//   - [Update] changes entities. Its effects on Datastore happen exactly once for each entity.
//   - [Visit] calls other services, at least once for each entity. [Entity.IdempotencyKey] lets a
//     service recognise a repetition.
//   - [VisitPages] writes files or batches, a page at a time.
//   - [UpdateBatches] and [VisitBatches] get many entities in one call.
//
// The function returns nil, [Skip], or an error, which may be marked by [Permanent] or
// [RetryAfter]. Three facts about its calls:
//
//   - Calls on the entities of a page run one after the other. Several tasks, in one process or in
//     many, run at the same time.
//   - The function may run several times for an entity. Only what it asks of its [Entity] takes
//     effect once, so the function of an Update has no other effects.
//   - In a rehearsal ([StartOptions].DryRun) the function runs, and nothing is written.
//
// # Serve
//
// [NewClient] makes the Datastore client, package tasks the queue, and [NewEngine] the engine. The
// service mounts [Engine.Handler], which Cloud Tasks calls, and calls [Engine.Drain] before it
// ends.
//
// # Start and follow
//
// [Mapper.Start] starts a job. A second start with the same ID and arguments returns the same job.
// [Job.Wait] waits for its end, and [Status.Err] says whether it did its work. A [Schedule] runs a
// mapper at times that a scheduler gives.
//
// # How it works
//
// A job starts as one range. The task of a range cuts off what others should do, records that as
// child ranges and enqueues a task for each. It processes the rest page by page. So the job finds
// work of unknown size and spreads it while it runs.
//
// Every range has a record in the database of the entities. The transaction that commits a page
// also marks the record as done. The transaction that cuts a range also records its children. From
// this follow the guarantees:
//
//   - The changes of an Update and the counts of every function take effect exactly once for each
//     entity, even if tasks are retried, delivered twice or killed.
//   - The ranges of a job cover its keys at all times. So the job processes every entity that
//     exists from its start to its end, or records it as a failure.
//   - An entity that is inserted while the job runs is processed only if the job has not passed its
//     key yet.
//
// docs/guide.md says what a job promises in more detail, and docs/recipes.md has whole jobs.
package mapper
