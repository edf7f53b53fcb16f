// Package testflag has the flags of tests.
//
//	go test ./emulator/... -run Differential -args -sequences 2000
//
// passes them to the test binaries of all packages, and a binary that does not
// know one fails. So the tests of all packages below emulator/ import this one.
package testflag

import "flag"

var (
	// Sequences is how many random sequences the differential test runs.
	Sequences = flag.Int("sequences", 60, "how many random sequences of calls are compared")

	// Seed is the first seed of random tests. 0 is a new one.
	Seed = flag.Uint64("seed", 0, "the first seed; 0 is a new one")
)
