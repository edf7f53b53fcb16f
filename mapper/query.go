package mapper

import (
	"fmt"
	"regexp"

	"cloud.google.com/go/datastore"
)

// A Query says which entities a job is over.
type Query struct {
	// Kind is the kind of the entities.
	Kind string `json:"kind"`

	// Namespace is their namespace. Defaults to the empty one.
	Namespace string `json:"namespace,omitempty"`
}

// validNamespace is what Datastore's documentation allows in a namespace.
var validNamespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`)

func (q Query) validate() error {
	if err := checkKind(q.Kind); err != nil {
		return fmt.Errorf("Query.Kind %w", err)
	}
	switch {
	case q.Kind == jobKind || q.Kind == rangeKind:
		return fmt.Errorf("Query.Kind %q holds the records of jobs themselves", q.Kind)
	case reservedName(q.Namespace):
		return fmt.Errorf("Query.Namespace %q is reserved by Datastore", q.Namespace)
	case !validNamespace.MatchString(q.Namespace):
		return fmt.Errorf("Query.Namespace %.110q is not up to 100 letters, digits, '.', '_' and '-'", q.Namespace)
	}
	return nil
}

// sample returns the Datastore query for keys spread over all of the entities.
func (q Query) sample(n int) *datastore.Query {
	return datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__scatter__").KeysOnly().Limit(n)
}
