// Package mapper applies a Go function to every entity of a Datastore query, in
// parallel, on Cloud Tasks.
//
// A mapper is a named function, made at package level by [Update] or [Visit]. A
// job is one run of a mapper over a [Query]. A range is an interval of keys. A page
// is the entities of a range that a task processes and commits together; what is left
// of the range behind them is another range.
//
// A job starts as one range. The task of a range cuts off what others should do,
// records that as child ranges and enqueues a task for each; the rest it processes
// page after page. So work of unknown size is found and spread while it is being
// done.
//
// Every range has a record in the database of the entities. The transaction
// that commits a page also marks its record as done, and the transaction that
// cuts a range also records its children. From this follow the guarantees:
//
//   - What the function of an [Update] changes, and what any function counts,
//     takes effect exactly once for each entity, whatever is retried, delivered
//     twice or killed.
//   - The function of a [Visit] runs at least once for each entity, and gets a
//     key to recognise repetitions by.
//   - The ranges of a job tile its key space at all times: no entity that is
//     there from the start of the job to its end is left out.
//   - Starting a job again with the same ID and arguments gives the same job.
//
// An entity that is inserted behind the front of a job is not visited, one
// ahead of it is.
package mapper
