// Package value interprets the values of properties. It finds the values at a path in an entity
// ([Each], [Of], [Indexed]), compares values ([Compare]), and returns their types ([Type]) and
// texts ([Text]). All code that interprets values uses this package. So a count, a filter, a
// rehearsal, a page of the dashboard and an export treat a value in the same way.
//
// Values have the Go client's types.
package value
