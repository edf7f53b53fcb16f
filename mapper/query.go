package mapper

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
)

// A Query says which entities a job is over.
type Query struct {
	// Kind is the kind of the entities.
	Kind string `json:"kind"`

	// Namespace is their namespace. Defaults to the empty one.
	Namespace string `json:"namespace,omitempty"`
}

// Bounds of kinds and namespaces, as the limits page of Datastore has them.
const (
	maxKind      = 1500 // bytes
	maxNamespace = 100  // bytes
)

func (q Query) validate() error {
	switch {
	case q.Kind == "":
		return errors.New("Query.Kind is empty")
	case reservedName(q.Kind):
		return fmt.Errorf("Query.Kind %q is reserved by Datastore", q.Kind)
	case q.Kind == jobKind || q.Kind == rangeKind:
		return fmt.Errorf("Query.Kind %q holds the records of jobs themselves", q.Kind)
	case len(q.Kind) > maxKind || !utf8.ValidString(q.Kind):
		return fmt.Errorf("Query.Kind is longer than %d bytes or not UTF-8", maxKind)
	case reservedName(q.Namespace) || len(q.Namespace) > maxNamespace || !utf8.ValidString(q.Namespace):
		return fmt.Errorf("Query.Namespace %q is reserved, longer than %d bytes or not UTF-8", q.Namespace, maxNamespace)
	}
	return nil
}

// within returns the Datastore query for the entities of a range.
func (q Query) within(start, end *datastore.Key) *datastore.Query {
	d := datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__key__")
	if start != nil {
		d = d.FilterField("__key__", ">=", start)
	}
	if end != nil {
		d = d.FilterField("__key__", "<", end)
	}
	return d
}

// sample returns the Datastore query for keys spread over all of the entities.
func (q Query) sample(n int) *datastore.Query {
	return datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__scatter__").KeysOnly().Limit(n)
}
