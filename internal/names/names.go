// Package names decides which names of kinds, namespaces, properties and jobs are valid, and which
// are reserved. Datastore reserves some names, and scattermap the kinds of its own records.
package names

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"cloud.google.com/go/datastore"
)

// Reserved reports whether Datastore reserves the name of a kind, entity, namespace or property.
// These match __.*__. Names that only start with two underscores are not reserved, such as
// __session.
func Reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}

// prefix is the start of the names of all kinds for scattermap's records, and for package export's
// records.
const prefix = "Scattermap"

// Ours reports whether a kind holds scattermap's records, of any version of scattermap. All such
// kinds are in the default namespace.
func Ours(namespace, kind string) bool { return namespace == "" && strings.HasPrefix(kind, prefix) }

// CheckOthers returns an error if a key is of one of scattermap's records. A job's function may
// neither read nor write these.
func CheckOthers(key *datastore.Key) error {
	if key == nil || !Ours(key.Namespace, key.Kind) {
		return nil
	}
	return fmt.Errorf("the kind %q of the default namespace holds scattermap's own records: a function must not "+
		"read or write them", key.Kind)
}

// A Record is a Go type of scattermap's own records that one of scattermap's own functions writes.
// No other module can implement this interface.
type Record interface{ OwnRecord(Own) }

// An Own is the parameter of [Record]'s method. Other modules can't name this type.
type Own struct{}

type owning struct{}

// Owning returns a context with which scattermap itself starts a job. Only with it may a job
// process scattermap's own records.
func Owning(ctx context.Context) context.Context { return context.WithValue(ctx, owning{}, true) }

// Owns reports whether a context was made by [Owning].
func Owns(ctx context.Context) bool { return ctx.Value(owning{}) != nil }

// namespace matches valid namespaces, as documented at the Go client's NewQuery.
var namespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`)

// Namespace reports whether a text is a valid name of a namespace.
func Namespace(s string) bool { return namespace.MatchString(s) && !Reserved(s) }

var jobID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// JobID reports whether a text is a valid ID of a job.
func JobID(id string) bool { return jobID.MatchString(id) && !Reserved(id) }
