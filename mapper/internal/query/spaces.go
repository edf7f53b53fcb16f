package query

import (
	"slices"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Limits of the kinds and namespaces that a query names, because they are stored in the job's
// record.
const (
	maxKinds      = 500
	maxNamespaces = 1000
)

// normalSpaces returns the query with its kinds and namespaces sorted, or an error if they are
// invalid.
func (q Query) normalSpaces() (Query, error) {
	switch {
	case len(q.Kinds) > 0 && q.Kind != "":
		return q, setting.Errorf("Query.Kind is %q, and there are Query.Kinds: set one of them", q.Kind)
	case len(q.Kinds) > maxKinds || len(q.Namespaces) > maxNamespaces:
		return q, setting.Errorf("Query.Kinds are %d, and Query.Namespaces %d, above the maximum of %d and %d",
			len(q.Kinds), len(q.Namespaces), maxKinds, maxNamespaces)
	case q.AllNamespaces && (q.Namespace != "" || len(q.Namespaces) > 0), q.Namespace != "" && len(q.Namespaces) > 0:
		return q, setting.Errorf("set only one of Query.Namespace, Query.Namespaces and Query.AllNamespaces")
	}
	if len(q.Kinds) == 0 {
		if err := keyspace.CheckKind(q.Kind); err != nil {
			return q, setting.Errorf("Query.Kind %w", err)
		}
	}
	for _, k := range q.AllKinds() {
		if err := keyspace.CheckKind(k); err != nil {
			return q, setting.Errorf("Query.Kinds: a kind %w", err)
		}
	}
	for _, n := range append(slices.Clone(q.Namespaces), q.Namespace) {
		switch {
		case names.Reserved(n):
			return q, setting.Errorf("Query.Namespace %q is reserved by Datastore", n)
		case !names.Namespace(n):
			return q, setting.Errorf("Query.Namespace %.110q does not consist of up to 100 letters, digits, '.', '_' "+
				"and '-'", n)
		}
	}
	q.Kinds, q.Namespaces = sortedNames(q.Kinds), sortedNames(q.Namespaces)
	if len(q.Kinds) == 1 {
		q.Kind, q.Kinds = q.Kinds[0], nil
	}
	if len(q.Namespaces) == 1 {
		q.Namespace, q.Namespaces = q.Namespaces[0], nil
	}
	return q, nil
}

// Foreign returns an error if one of the query's kinds is a kind of scattermap's own records.
func (q Query) Foreign() error {
	for _, k := range q.AllKinds() {
		if slices.ContainsFunc(named(q), func(n string) bool { return names.Ours(n, k) }) {
			return setting.Errorf("Query.Kind %q holds scattermap's own records in the default namespace: no job "+
				"can be "+
				"over it", k)
		}
	}
	return nil
}

// named returns the namespaces that the query names, or the default namespace if it names none
// (even if it is over all namespaces).
func named(q Query) []string {
	if len(q.Namespaces) > 0 {
		return q.Namespaces
	}
	return []string{q.Namespace}
}

func sortedNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// Many reports whether the query is over several kinds, several namespaces, or all namespaces.
func (q Query) Many() bool { return len(q.Kinds) > 0 || len(q.Namespaces) > 0 || q.AllNamespaces }

// AllKinds returns the query's kinds, sorted.
func (q Query) AllKinds() []string {
	if len(q.Kinds) > 0 {
		return q.Kinds
	}
	return []string{q.Kind}
}

// In returns the part of the query that is in one kind and namespace.
func (q Query) In(s keyspace.Space) Query {
	q.Namespace, q.Kind = s.Namespace, s.Kind
	q.Kinds, q.Namespaces, q.AllNamespaces = nil, nil, false
	return q
}

// Space returns the kind and namespace of a query that has only one of each.
func (q Query) Space() keyspace.Space {
	return keyspace.Space{Namespace: q.Namespace, Kind: q.Kind}
}
