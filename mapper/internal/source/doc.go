// Package source reads the entities of a job's query from Datastore. A [Source] reads the present
// state of a database, or its state at a past time. It finds, counts and samples positions, looks
// up entities, and lists kinds and namespaces. A position is a place in the order in which a job
// processes entities, and a range is an interval of positions. A [Stream] reads the entities of a
// range one after the other, and can read in advance.
package source
