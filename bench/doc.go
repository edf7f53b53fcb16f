// Package bench compares scattermap with its alternatives in three ways:
//
//   - In virtual time, the production code and the real clients run whole jobs on the embedded
//     emulators, with the latencies of a cloud.
//   - In real time, benchmarks measure the work of the library itself (overhead_test.go,
//     peers_test.go).
//   - In money, tests compare the costs of jobs (cost_test.go).
//
// This command prints a table:
//
//	go test ./bench -run TestMakespan -v
//
// With -args -json it prints one object for each row. Other flags choose the rows: see
// makespan_test.go. TestShapes draws jobs at random: see docs/shapes.md.
package bench
