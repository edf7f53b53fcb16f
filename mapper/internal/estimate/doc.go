// Package estimate estimates what a job will take, and how far it is. A [Forecast] is for a job
// that has not started. It comes from a [Model], which simulates without a database how the job's
// query is split into ranges. The simulated entities are a [VirtualKind], whose keys are
// calculated. Tests use the model to show how splitting scales.
//
// A [State] describes a job that has started, for the jobs API, the command line and the dashboard.
// A [Look] has the facts from which the State is estimated: the job's record, a sample of the
// records of its ranges, and the state of the queue. A [Shown] keeps the shown progress from going
// back when the next sample differs.
package estimate
