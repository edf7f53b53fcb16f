// Package protocol_test tests whole jobs: the promises of package mapper, each in a file that it
// names, and the simulations. They act through the public API, on the embedded Datastore and Cloud
// Tasks, or on Google's emulators. world_test.go has the world that a job needs, and
// simulation_test.go says how a simulation replays a seed.
//
//	go test ./mapper/protocol                        # every promise once
//	go test ./mapper/protocol -run 'TestSimulation$' -args -seeds 1000
//
// A rule of one inner package is tested beside it, in mapper/internal.
package protocol_test
