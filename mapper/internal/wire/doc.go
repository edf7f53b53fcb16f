// Package wire has what Datastore's protocol offers and the Go client does not: the versions of
// entities that are read, the entities themselves byte for byte, and commits that take place only
// if entities still have the versions that they were read at: a [Commit] of one call, and one of a
// transaction ([Versions.Require]).
//
// The client stays the official one. Its connection has an interceptor, package intercept, which
// notes the versions in answers and sets the conditions in requests, for calls whose context asks
// for it.
package wire
