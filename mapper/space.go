package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
)

// A space is one kind in one namespace.
type space struct{ namespace, kind string }

func compareSpaces(a, b space) int {
	return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.kind, b.kind))
}

// end returns the position behind all of a space.
func (s space) end() *position {
	return &position{Namespace: s.namespace, Kind: s.kind + "\x00"}
}

// The most kinds and namespaces that a query names, which are in the record of its job.
const (
	maxKinds      = 100
	maxNamespaces = 1000
)

// normalSpaces checks kinds and namespaces, and sorts them.
func (q Query) normalSpaces() (Query, error) {
	switch {
	case len(q.Kinds) > 0 && q.Kind != "":
		return q, fmt.Errorf("Query.Kind is %q, and there are Query.Kinds: set one of them", q.Kind)
	case len(q.Kinds) > maxKinds || len(q.Namespaces) > maxNamespaces:
		return q, fmt.Errorf("Query.Kinds are %d, and Query.Namespaces %d, above the maximum of %d and %d", len(q.Kinds), len(q.Namespaces), maxKinds, maxNamespaces)
	case q.AllNamespaces && (q.Namespace != "" || len(q.Namespaces) > 0), q.Namespace != "" && len(q.Namespaces) > 0:
		return q, errors.New("of Query.Namespace, Query.Namespaces and Query.AllNamespaces one can be set")
	}
	if len(q.Kinds) == 0 {
		if err := checkKind(q.Kind); err != nil {
			return q, fmt.Errorf("Query.Kind %w", err)
		}
	}
	for _, k := range q.kinds() {
		if err := checkKind(k); err != nil {
			return q, fmt.Errorf("Query.Kinds: one %w", err)
		}
		if k == jobKind || k == rangeKind {
			return q, fmt.Errorf("Query.Kind %q holds the records of jobs themselves", k)
		}
	}
	for _, n := range append(slices.Clone(q.Namespaces), q.Namespace) {
		switch {
		case reservedName(n):
			return q, fmt.Errorf("Query.Namespace %q is reserved by Datastore", n)
		case !validNamespace.MatchString(n):
			return q, fmt.Errorf("Query.Namespace %.110q is not up to 100 letters, digits, '.', '_' and '-'", n)
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

func sortedNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// many reports whether the query is over more than one space.
func (q Query) many() bool { return len(q.Kinds) > 0 || len(q.Namespaces) > 0 || q.AllNamespaces }

// kinds returns the kinds of the query, in order.
func (q Query) kinds() []string {
	if len(q.Kinds) > 0 {
		return q.Kinds
	}
	return []string{q.Kind}
}

// in returns the part of the query that is in one space.
func (q Query) in(s space) Query {
	q.Namespace, q.Kind = s.namespace, s.kind
	q.Kinds, q.Namespaces, q.AllNamespaces = nil, nil, false
	return q
}

// space returns the kind and the namespace of a query that is in one space.
func (q Query) space() space { return space{q.Namespace, q.Kind} }

// namespaceKind is the kind of the metadata of namespaces.
const namespaceKind = "__namespace__"

// namespaceKey returns the key of a namespace's metadata: the empty one has an id.
func namespaceKey(namespace string) *datastore.Key {
	if namespace == "" {
		return datastore.IDKey(namespaceKind, 1, nil)
	}
	return datastore.NameKey(namespaceKind, namespace, nil)
}

// namespaces returns the namespaces of the query from one on, one after the other.
func (e *Engine) namespaces(ctx context.Context, q Query, from string) func() (namespace string, ok bool, err error) {
	all := q.Namespaces
	if len(all) == 0 {
		all = []string{q.Namespace}
	}
	if !q.AllNamespaces {
		return func() (string, bool, error) {
			for len(all) > 0 {
				n := all[0]
				if all = all[1:]; n >= from {
					return n, true, nil
				}
			}
			return "", false, nil
		}
	}
	var it *datastore.Iterator
	return func() (string, bool, error) {
		if it == nil {
			it = e.client.Run(ctx, datastore.NewQuery(namespaceKind).FilterField("__key__", ">=", namespaceKey(from)).Order("__key__").KeysOnly())
		}
		k, err := it.Next(nil)
		switch {
		case errors.Is(err, iterator.Done):
			return "", false, nil
		case err != nil:
			return "", false, fmt.Errorf("list the namespaces: %w", err)
		}
		return k.Name, true, nil
	}
}

// spaces returns the spaces that a range of the query reaches into, one after the other.
func (e *Engine) spaces(ctx context.Context, q Query, start, end *position) func() (s space, ok bool, err error) {
	var from space
	if start != nil {
		from = start.space()
	}
	namespaces := e.namespaces(ctx, q, from.namespace)
	var namespace string
	var kinds []string
	return func() (space, bool, error) {
		for {
			for len(kinds) > 0 {
				s := space{namespace, kinds[0]}
				kinds = kinds[1:]
				if end != nil {
					if c := compareSpaces(s, end.space()); c > 0 || c == 0 && !end.Valued && end.Key == nil {
						return space{}, false, nil
					}
				}
				if compareSpaces(s, from) >= 0 {
					return s, true, nil
				}
			}
			n, ok, err := namespaces()
			if !ok || err != nil {
				return space{}, false, err
			}
			namespace, kinds = n, q.kinds()
		}
	}
}

// scanner returns the scans of a range, one after the other.
func (e *Engine) scanner(ctx context.Context, q Query, start, end *position) func() (s scan, ok bool, err error) {
	spaces := e.spaces(ctx, q, start, end)
	var rest []scan
	return func() (scan, bool, error) {
		for len(rest) == 0 {
			s, ok, err := spaces()
			if !ok || err != nil {
				return scan{}, false, err
			}
			rest = q.in(s).scans(start, end)
		}
		s := rest[0]
		rest = rest[1:]
		return s, true, nil
	}
}
