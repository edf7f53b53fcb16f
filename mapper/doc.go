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
// jobs and runs their tasks. More terms:
//
//   - A range is an interval of keys. In a job with [Query].ShardBy it is an interval of that
//     property's values.
//   - A page is a group of entities of a range, up to [StartOptions].PageSize. They are processed
//     and committed together.
//   - A task is a Cloud Task. Most tasks process one range. A delivery is one HTTP request by which
//     Cloud Tasks runs a task. Cloud Tasks may deliver a task several times.
//   - A record is an entity in which the engine stores a job or a range.
//   - A failure is an entity on which the function has failed in all attempts. The job records it,
//     and continues with the other entities.
//
// # Define a mapper
//
//   - [Update] changes entities. Its effects on Datastore happen exactly once for each entity.
//   - [Visit] calls other services, at least once for each entity. [Entity.IdempotencyKey] lets a
//     service recognise a repetition.
//   - [VisitPages] writes files or batches, a page at a time.
//   - [UpdateBatches] and [VisitBatches] get many entities in one call.
//
// The function returns nil, [Skip], or an error. [Permanent] and [RetryAfter] mark errors. Three
// facts about calls of the function:
//
//   - Several tasks, in one process or in many, run at the same time. Within a task, calls run one
//     after the other. [Mapper.WithConcurrency] changes that.
//   - The function may run several times for an entity. Its changes of Value, and its puts, deletes
//     and counts, take effect once. So the function of an Update should have no other effects.
//   - In a rehearsal of an Update ([StartOptions].DryRun) the function runs, but nothing that it
//     changes is written.
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
// [Job.Wait] waits for its end. [Status.Err] says whether all entities were processed. A [Schedule]
// runs a mapper regularly, driven by a scheduler such as Cloud Scheduler.
//
// # How it works
//
// A job starts as one range. The task of a range cuts off parts for other tasks, records them as
// child ranges, and enqueues a task for each. It processes the rest page by page. So a job spreads
// its work while it runs, and need not know the number of entities in advance.
//
// The records are in the same database as the entities. The transaction that commits a page also
// records that the page is done. The transaction that cuts a range also records its children. The
// guarantees follow from this:
//
//   - The changes of an Update and the counts of every function take effect exactly once for each
//     entity, even if tasks are retried, delivered twice or killed.
//   - The ranges of a job cover its keys at all times. So the job processes every entity that
//     exists from its start to its end, or records it as a failure.
//   - An entity that is inserted while the job runs is processed only if the job has not passed its
//     key yet.
//
// docs/guide.md has the promises in detail, and docs/recipes.md has complete examples.
package mapper
