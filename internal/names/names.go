// Package names is the one notion of names that are not everybody's: those that Datastore keeps for
// itself, and the kinds of scattermap's own records. A place that decides about one asks here.
package names

import (
	"context"
	"regexp"
	"strings"
)

// Reserved reports whether Datastore keeps a kind, a name, a namespace or a property for itself:
// those that match __.*__. Others that begin with two underscores, such as the kind __session, are
// anybody's.
func Reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}

// prefix begins the names of the kinds of all records of ours, those of package export included.
const prefix = "Scattermap"

// Ours reports whether a kind of a namespace holds records of ours, of this build or another: all
// are in the default namespace.
func Ours(namespace, kind string) bool { return namespace == "" && strings.HasPrefix(kind, prefix) }

type owning struct{}

// Owning returns the context of a start of our own: its job may be over kinds of ours.
func Owning(ctx context.Context) context.Context { return context.WithValue(ctx, owning{}, true) }

// Owns reports whether a context is one that [Owning] has returned.
func Owns(ctx context.Context) bool { return ctx.Value(owning{}) != nil }

var namespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`) // as the client's NewQuery documents it

// Namespace reports whether there can be a namespace of a name.
func Namespace(s string) bool { return namespace.MatchString(s) && !Reserved(s) }

var jobID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// JobID reports whether a job can have an ID.
func JobID(id string) bool { return jobID.MatchString(id) && !Reserved(id) }
