// Package source reads entities: a [Source] is a database as queries read it, as it is or as it was
// at a time. It finds, counts and samples positions, looks entities up, lists spaces, and reads the
// entities of a range one after the other, by a [Stream] that can be ahead of who uses it.
package source
