// Package emulator runs Cloud Datastore and Cloud Tasks in this process, for
// tests and for first steps: no installation, no account, started in
// milliseconds.
//
// An [Emulator] is one of each. Both speak their real gRPC protocols, so that
// the official client libraries, made by [Emulator.DatastoreClient] and
// [Emulator.TasksClient], take the same path as in production. Inside the process the
// clients are connected in memory; [Options] can open loopback ports for other
// processes too. Both services count what Google would bill ([Usage]), and
// [billing.Prices] turn that into money. [Emulator.Reset] empties the emulator between two
// tests.
//
// [Faults] make calls and deliveries go wrong, by rules and by a seed: answers
// that are lost, services that are away, tasks that come twice. Without them every
// task is delivered until one delivery succeeds, and not once more; what must
// stand Cloud Tasks' "at least once" is tested with [DeliverTwice].
//
// The Datastore is the whole google.datastore.v1 service: queries of every kind,
// structured and in GQL, aggregations, transactions with optimistic or
// pessimistic concurrency, reads at a time of the last hour, the limits that
// production enforces, and composite indexes as in production if asked for. A
// query finds its results in an index, and never scans a kind. What it does is compared
// with Google's two emulators, case by case and by random sequences, in the folder
// conformance: where those differ from what is documented, it does what is
// documented. It has no vector search. Cloud Tasks is the whole google.cloud.tasks.v2
// service but for App Engine tasks and access policies, which it refuses.
//
// [Google] is one of Google's own emulators, where they are installed, so that
// the same test can be run against all.
//
// As a server for other processes and languages it is started by
//
//	go run github.com/scattermap/scattermap/cmd/scattermap emulator
package emulator
