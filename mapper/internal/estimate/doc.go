// Package estimate says what a job will take, and how far it is. A [Forecast] is for a job that has
// not started. It comes from a [Model] that simulates splitting without a database, over a
// [VirtualKind], whose keys are calculated from their ranks. Tests use the model to show how
// splitting scales. A [Progress] is for a job that runs: an estimate from a sample of its records,
// with its bounds.
package estimate
