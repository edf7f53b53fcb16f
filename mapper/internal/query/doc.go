// Package query says which entities a job is over: what a [Query] may ask for, in which order its
// entities are, and the Datastore queries, each a [Scan], that find those of a range. It reads
// nothing: package source does.
package query
