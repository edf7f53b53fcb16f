// Package value is the one notion of a property's value for everything that does not store it:
// where a path leads ([Each], [Of], [Indexed]), how values are ordered ([Compare]), which type one
// has ([Type]), and its text ([Text]). A place that needs one of these asks here, so that a count,
// a condition, a rehearsal, a page of the dashboard and an export agree.
//
// Values are those of the Go client.
package value
