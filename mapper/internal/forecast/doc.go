// Package forecast estimates what a job takes before it starts: [Of] counts the entities of its
// query, or estimates their number from a sample, and models what becomes of that many.
package forecast
