// Package names decides whether a name of a kind, namespace, property or job is valid or reserved.
// Datastore reserves some names, and scattermap the kinds of its own records. All code that has to
// know asks this package.
package names

import (
	"context"
	"regexp"
	"strings"
)

// Reserved reports whether Datastore reserves a kind, name, namespace or property for itself. These
// match __.*__. Other names with two underscores at the start, such as the kind __session, are
// free.
func Reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}

// prefix starts the names of all kinds that hold scattermap's records, also the kinds of package
// export.
const prefix = "Scattermap"

// Ours reports whether a kind in a namespace holds scattermap's records, of any version. All such
// kinds are in the default namespace.
func Ours(namespace, kind string) bool { return namespace == "" && strings.HasPrefix(kind, prefix) }

type owning struct{}

// Owning returns a context in which scattermap itself starts a job. Only with such a context may a
// job be over kinds of scattermap's own records.
func Owning(ctx context.Context) context.Context { return context.WithValue(ctx, owning{}, true) }

// Owns reports whether a context comes from [Owning].
func Owns(ctx context.Context) bool { return ctx.Value(owning{}) != nil }

// namespace matches valid names of namespaces, as the comment of the client's NewQuery describes
// them.
var namespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`)

// Namespace reports whether a text is a valid name of a namespace.
func Namespace(s string) bool { return namespace.MatchString(s) && !Reserved(s) }

var jobID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// JobID reports whether a text is a valid ID of a job.
func JobID(id string) bool { return jobID.MatchString(id) && !Reserved(id) }
