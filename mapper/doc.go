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
// jobs and runs their tasks. Further words:
//
//   - A range is an interval of keys, or of the values of [Query].ShardBy.
//   - A page is the entities of a range that are processed and committed together, up to
//     [StartOptions].PageSize.
//   - A task is a Cloud Task, mostly for one range. A delivery is one HTTP request that Cloud Tasks
//     makes for it. Cloud Tasks may deliver a task several times.
//   - A record is an entity in which the engine stores a job or a range.
//   - A failure is an entity that has failed all of its attempts. It is recorded, and the job
//     continues with the other entities.
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
//   - Several tasks, in one process or in many, run at the same time. In a task, calls run one
//     after the other, unless the job has a concurrency ([Mapper.WithConcurrency]).
//   - The function may run several times for an entity. Only what it asks of its [Entity] takes
//     effect once, so the function of an Update has no other effects.
//   - In a rehearsal of an Update ([StartOptions].DryRun) the function runs, and none of its changes
//     is written.
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
// A job starts as one range. The task of a range cuts off the parts that other tasks should do,
// records them as child ranges, and enqueues a task for each. It processes the rest page by page.
// So the job finds work of unknown size and spreads it while it runs.
//
// The records are in the database of the entities. The transaction that commits a page also marks
// the range's record as done. The transaction that cuts a range also records its children. The
// guarantees follow from this:
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
