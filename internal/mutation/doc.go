// Package mutation makes small faults in scattermap's code, called mutants, to check that the tests
// find them. It does so in the code that scattermap's promises rest on.
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
// made a difference. It can find only these.
//
// The command mutate tries all mutants. The tests of this package check the generator, and try a
// sample.
package mutation
