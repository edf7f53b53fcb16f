// Package mutation changes what decides about scattermap's promises, to see that its tests notice.
// It parses the packages of [Targets], and makes mutants of them: each condition negated, never or
// always true; without one of its operands; at its boundary; each effect skipped; each step that
// may fail not done. All are in one binary, and the environment says which one is on: building
// takes longer than running. Tests are chosen by what they reach: each runs once, and notes which
// mutants would have made a difference.
//
// The command mutate runs all of them. The tests of this package check the generator, and try a
// sample.
package mutation
