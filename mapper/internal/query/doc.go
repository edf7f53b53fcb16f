// Package query defines the query of a job. A [Query] selects entities and defines their order. A
// range is an interval in this order. A query also makes the Datastore queries that find the
// entities of a range, each a [Scan]. This package calls no database: package source reads
// entities.
package query
