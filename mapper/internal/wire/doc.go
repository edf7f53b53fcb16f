// Package wire adds what Datastore's protocol offers and the Go client lacks. These are the
// versions of entities, entities byte for byte, and conditional commits. A conditional commit
// happens only if entities still have the versions that were read. It is one call ([Commit]), or a
// transaction's ([Versions.Send]).
//
// The official client is still used. Its connection has an interceptor, package intercept. For
// calls whose context asks for it, the interceptor notes versions in answers, and sets conditions
// in requests.
package wire
