// Package estimate estimates how long a job will take, and how far a running job is. A [Forecast]
// is for a job that has not started. It comes from a [Model], which simulates without a database
// how the job's query is split into ranges. The simulated entities are a [VirtualKind], whose keys
// are calculated. Tests use the model to show how splitting scales.
//
// A [State] describes a job that has started, for the jobs API, the command line and the dashboard.
// It is estimated from a [Look]: the job's record, a sample of the records of its ranges, and the
// state of the queue. A [Shown] remembers the last State of each job, so that the displayed
// progress does not go back when the next sample differs.
package estimate
