// Package emulator runs Cloud Datastore and Cloud Tasks in this process, for tests and first steps.
// It needs no installation and no account, and starts in milliseconds.
//
// An [Emulator] is one of each. Both speak their real gRPC protocols, so the official client
// libraries take the same path as in production. [Emulator.DatastoreClient] and
// [Emulator.TasksClient] make clients that are connected in memory. [Options] can open loopback
// ports for other processes. [Emulator.Reset] empties the emulator between two tests. Both services
// count what Google would bill ([Usage]).
//
// # Faults
//
// Faults make calls and deliveries go wrong, by rules and by a seed: answers are lost, services are
// away, tasks come twice. Without faults, a task is delivered until one delivery succeeds, and then
// no more. Cloud Tasks promises only "at least once", so test with deliveries that come twice.
//
// # What it covers
//
// The Datastore is the whole google.datastore.v1 service except vector search. It has structured
// queries and GQL, aggregations, optimistic and pessimistic transactions, and reads at a time of
// the last hour. It enforces the limits of production and, on request, requires composite indexes.
// A query finds its results in an index and never scans a kind.
//
// Cloud Tasks is the whole google.cloud.tasks.v2 service except App Engine tasks and access
// policies, which it refuses.
//
// The tests in the folder conformance compare the Datastore with Google's two emulators. Where
// these differ from Google's documentation, this Datastore does what is documented. One test can
// run against this emulator and both of Google's, where they are installed.
//
// # Other processes and languages
//
// This command serves both emulators, and prints the environment variables for clients:
//
//	go run github.com/scattermap/scattermap/cmd/scattermap emulator
package emulator
