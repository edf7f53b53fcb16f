// Package splitsim does what tasks do with ranges, without a database: a [Model] is what splitting
// makes of a job over a [VirtualKind], whose keys are calculated from their ranks. A plan estimates
// a job with it, and tests show how splitting scales.
package splitsim
