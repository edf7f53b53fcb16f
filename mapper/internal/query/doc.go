// Package query defines the query of a job. A [Query] is checked, and knows the order of its
// entities. It makes the Datastore queries that find a range's entities, each a [Scan]. The package
// reads nothing; package source does.
package query
