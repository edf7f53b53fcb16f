// Package source reads entities from Datastore. A [Source] is a database as of now, or as of a past
// time. It finds, counts and samples positions, looks up entities, and lists kinds and namespaces.
// A [Stream] reads the entities of a range one after the other, and can read ahead.
package source
