// Package emulator runs Cloud Datastore and Cloud Tasks in this process, for tests and first steps.
// It needs no installation and no account, and starts in milliseconds.
//
// An [Emulator] has one Datastore and one Cloud Tasks. Both speak their real protocols, gRPC and
// REST, so the official client libraries take the same path as in production.
// [Emulator.DatastoreClient] and [Emulator.TasksClient] make clients that are connected in memory.
// [Options] can open ports for other processes. [Emulator.Reset] empties the emulator between two
// tests. Both services count what Google would bill ([Usage]).
//
//	e := emulator.ForTest(t, nil)
//	client, err := e.DatastoreClient(t.Context(), "my-project")
//
// # Faults
//
// Package faults makes calls and deliveries go wrong, by rules and by a seed: see
// [Options].Faults. Without faults, a task is delivered until one delivery succeeds, and never
// after that. Cloud Tasks promises only at-least-once delivery, so test with [faults.DeliverTwice].
//
// # What it covers
//
// The Datastore is the whole google.datastore.v1 service, except vector search. It has structured
// queries, GQL, aggregations, optimistic and pessimistic transactions, and reads as of any time in
// the last hour. It enforces the limits of production. On request it also requires composite
// indexes. A query finds its results in an index and never scans a kind. The admin API, such as
// exports, is not served.
//
// Cloud Tasks is the whole google.cloud.tasks.v2 service, except App Engine tasks, access policies
// and encryption keys, which it refuses. The list of locations and beta versions are not served.
//
// The tests in the folder conformance compare the Datastore with Google's two emulators. Where
// these differ from Google's documentation, this Datastore follows the documentation. Package
// google starts Google's emulators, if they are installed, so that one test can run against all
// three.
//
// # Other processes and languages
//
// This command serves both emulators, and prints the environment variables for clients:
//
//	go run github.com/scattermap/scattermap/cmd/scattermap emulator
package emulator
