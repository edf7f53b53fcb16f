// Package bench compares scattermap with the alternatives of its users, in three ways:
//
//   - in virtual time: the production code and the real clients run whole jobs on the embedded
//     emulators, with the latencies of a cloud
//   - in real time: the work of the library itself (overhead_test.go, peers_test.go)
//   - in money (cost_test.go)
//
// This command prints a table:
//
//	go test ./bench -run TestMakespan -v
//
// With -args -json it prints one object for each row. Other flags choose the rows: see
// makespan_test.go. TestShapes draws random shapes: see docs/shapes.md.
package bench
