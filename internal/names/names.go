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

// Reserved reports whether Datastore reserves this name of a kind, entity, namespace or property.
// Reserved names start and end with two underscores. Names that only start with them, such as
// __session, are not reserved.
func Reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}

// prefix is the start of the names of all kinds for scattermap's records, and for package export's
// records.
const prefix = "Scattermap"

// Ours reports whether a kind holds scattermap's records, of any version of scattermap. All such
// kinds are in the default namespace.
func Ours(namespace, kind string) bool { return namespace == "" && strings.HasPrefix(kind, prefix) }

// CheckOthers returns an error if the key belongs to one of scattermap's own records. The function
// of a job must not read or write these.
func CheckOthers(key *datastore.Key) error {
	if key == nil || !Ours(key.Namespace, key.Kind) {
		return nil
	}
	return fmt.Errorf("the kind %q of the default namespace holds scattermap's own records: a function must not "+
		"read or write them", key.Kind)
}

// Record is implemented by the Go types of scattermap's records that its own mappers write. Other
// modules can't implement it.
type Record interface{ OwnRecord(Own) }

// Own is the type of the parameter of [Record]'s method. Other modules can't name it.
type Own struct{}

type owning struct{}

// Owning returns a context for starts of jobs by scattermap itself. Only with it may a job process
// scattermap's own records.
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

// Word reports whether the jobs API uses a text as a word of its own below /jobs, where it has IDs of
// jobs: GET /jobs/mappers lists mappers. No new job can have such an ID. Jobs of earlier builds may
// have one, so checks of existing jobs do not call Word.
func Word(id string) bool { return id == "mappers" || id == "plan" }
