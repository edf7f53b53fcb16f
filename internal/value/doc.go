// Package value interprets the values of properties. It resolves paths ([Each], [Of], [Indexed]),
// compares values ([Compare]), and returns their types ([Type]) and texts ([Text]). All code uses
// this package for these, except code that stores values. So a count, a condition, a rehearsal, a
// page of the dashboard and an export agree.
//
// Values have the Go client's types.
package value
