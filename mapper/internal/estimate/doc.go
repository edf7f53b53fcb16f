// Package estimate says what a job will take, and how far it is. A [Forecast] says what is expected
// of a job before it starts: by a [Model], which does what tasks do with ranges, without a
// database, over a [VirtualKind], whose keys are calculated from their ranks. A [Progress] says how
// far a job is, from a part of its records, and between which bounds. Tests show by the model how
// splitting scales.
package estimate
