// Package bench compares scattermap with what its users would otherwise have: in virtual
// time, where the production code and the real clients run whole jobs on the embedded
// emulators, with the latencies of a cloud; in real time, for what it takes itself
// (overhead_test.go, peers_test.go); and in money (cost_test.go).
//
//	go test ./bench -run TestMakespan -v
//
// prints a table. With -args -json it prints one object a row, and other flags choose
// the rows; see makespan_test.go. TestShapes has shapes that nobody has chosen: see docs/shapes.md.
package bench
