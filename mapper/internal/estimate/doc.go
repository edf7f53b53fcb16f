// Package estimate estimates what a job will take, and how far it is. A [Forecast] is for a job
// that has not started. It comes from a [Model] that simulates splitting without a database, over a
// [VirtualKind], whose keys are calculated from their ranks. Tests use the model to show how
// splitting scales.
//
// A [State] describes a job that has started, for the jobs API, the command line and the dashboard.
// A [Look] makes it from the job's record, a sample of the records of its ranges, and what the
// queue says. [Shown] keeps estimates from going back.
package estimate
