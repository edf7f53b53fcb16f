// Package mutation checks that scattermap's tests find small faults in its code. It makes such
// faults, called mutants, in the code on which scattermap's promises rest.
//
// It parses the packages of [Targets]. These are the kinds of mutants:
//
//   - A condition is negated, never true, always true, or lacks one of its operands.
//   - A comparison changes at its boundary.
//   - An effect is skipped.
//   - A step that may fail is left out.
//
// All mutants are in one test binary, because building takes longer than running. An environment
// variable turns one of them on. Each test first runs without a mutant, and records the mutants
// that would have made a difference. It can find only these.
//
// The command mutate tries all mutants. The tests of this package check the generator, and try a
// sample of mutants.
package mutation
