// Package source reads entities. A [Source] is a database as queries read it, now or as of a past
// time. It finds, counts and samples positions, looks up entities and lists spaces. A [Stream]
// reads the entities of a range one after the other, and can read ahead.
package source
