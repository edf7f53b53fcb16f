// Package protocol_test tests whole jobs. Each file tests promises of package mapper about one
// subject, or is a part of the simulations. The tests act through the public API, on the embedded
// Datastore and Cloud Tasks, or on Google's emulators. File world_test.go defines the world in
// which a test runs a job: a database, a queue and an engine. File simulation_test.go says how a
// simulation replays a seed.
//
//	go test ./mapper/protocol                        # every promise once
//	go test ./mapper/protocol -run 'TestSimulation$' -args -seeds 1000
//
// The rules of an inner package are tested beside it, in mapper/internal.
package protocol_test
