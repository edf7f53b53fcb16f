// Package value defines what a property's value means for all code that does not store it. It says
// where a path leads ([Each], [Of], [Indexed]), and has the order of values ([Compare]), their type
// ([Type]) and their text ([Text]). All code uses this package for these. So a count, a condition,
// a rehearsal, a page of the dashboard and an export agree.
//
// Values have the Go client's types.
package value
