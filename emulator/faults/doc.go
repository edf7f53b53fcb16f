// Package faults makes the calls and deliveries of an emulator go wrong, by rules and by a seed.
// Answers are lost, services are down, and tasks are delivered twice.
//
//	lost := faults.New(1, faults.Rule{Kind: faults.LoseAnswer, Methods: []string{"Commit"}, Share: 0.1})
//	e := emulator.ForTest(t, &emulator.Options{Faults: lost})
//
// A [Rule] has a [Kind], a share of the calls or deliveries, and a time window. [LoseCall],
// [LoseAnswer], [SlowCall] and [AbortCommit] happen to calls, and the other kinds to deliveries. A
// [Latency] is a random duration: [Constant], [Uniform], [Exponential] or [LogNormal].
//
// [Faults.Counts] says what has happened. [Faults.Pause] and [Faults.Resume] limit faults to a part
// of a test.
package faults
