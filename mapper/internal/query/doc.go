// Package query defines the query of a job. A [Query] selects entities, and orders them. It makes
// the Datastore queries that find the entities of a range, each a [Scan]. A range is an interval in
// that order. The package makes no calls: package source reads entities.
package query
