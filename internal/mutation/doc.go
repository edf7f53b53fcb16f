// Package mutation changes the code that decides about scattermap's promises, to check that its
// tests notice.
//
// It parses the packages of [Targets], and makes mutants of them:
//
//   - A condition is negated, never true, always true, or lacks one of its operands.
//   - A comparison changes at its boundary.
//   - An effect is skipped.
//   - A step that may fail is left out.
//
// All mutants are in one binary, as building takes longer than running. An environment variable
// says which one is on. Each test runs once without a mutant, and notes which mutants would have
// made a difference. Those are the mutants that it can find.
//
// The command mutate tries all mutants. The tests of this package check the generator, and try a
// sample.
package mutation
