// Package wire gives access to parts of Datastore's protocol that the Go client does not offer: the
// versions of entities, entities byte for byte, and conditional commits. A conditional commit takes
// effect only if entities still have given versions. It is either one call ([Commit]), or the
// commit of a transaction ([Versions.Send]).
//
// The official client is still used. Its connection has an interceptor, package intercept. For
// calls whose context asks for it, the interceptor records versions in answers, and adds conditions
// to requests.
package wire
