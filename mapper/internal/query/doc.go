// Package query says which entities a job is over. It checks what a [Query] asks for, and knows the
// order of its entities. It makes the Datastore queries that find a range's entities, each a
// [Scan]. It reads nothing; package source does.
package query
