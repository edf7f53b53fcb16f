package source

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// namespaceKind is the kind of the metadata entities that Datastore has for namespaces.
const namespaceKind = "__namespace__"

// namespaceKey returns the key of the metadata entity that Datastore has for a namespace. The key's
// name is the namespace, except for the empty namespace, whose key has an ID.
func namespaceKey(namespace string) *datastore.Key {
	if namespace == "" {
		return datastore.IDKey(namespaceKind, 1, nil)
	}
	return datastore.NameKey(namespaceKind, namespace, nil)
}

// namespaces returns an iterator over the query's namespaces, in order, from the namespace from on.
func (src Source) namespaces(
	ctx context.Context, q query.Query, from string,
) func() (namespace string, ok bool, err error) {
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
			it = src.Client.Run(ctx, datastore.NewQuery(namespaceKind).FilterField("__key__", ">=",
				namespaceKey(from)).Order("__key__").KeysOnly())
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

// Spaces returns an iterator over the pairs of namespace and kind in a range of the query, in
// order. The bool is false at the end.
func (src Source) Spaces(
	ctx context.Context, q query.Query, start, end *keyspace.Position,
) func() (s keyspace.Space, ok bool, err error) {
	var from keyspace.Space
	if start != nil {
		from = start.Space()
	}
	namespaces := src.namespaces(ctx, q, from.Namespace)
	var namespace string
	var kinds []string
	return func() (keyspace.Space, bool, error) {
		for {
			for len(kinds) > 0 {
				s := keyspace.Space{Namespace: namespace, Kind: kinds[0]}
				kinds = kinds[1:]
				if end != nil {
					if c := keyspace.CompareSpaces(s, end.Space()); c > 0 || c == 0 && !end.Valued && end.Key == nil {
						return keyspace.Space{}, false, nil
					}
				}
				if keyspace.CompareSpaces(s, from) >= 0 {
					return s, true, nil
				}
			}
			n, ok, err := namespaces()
			if !ok || err != nil {
				return keyspace.Space{}, false, err
			}
			namespace, kinds = n, q.AllKinds()
		}
	}
}

// scanner returns an iterator over the scans of a range, in order. Each scan is a Datastore query,
// and together they find the range's entities. The bool is false at the end.
func (src Source) scanner(
	ctx context.Context, q query.Query, start, end *keyspace.Position,
) func() (s query.Scan, ok bool, err error) {
	spaces := src.Spaces(ctx, q, start, end)
	var rest []query.Scan
	return func() (query.Scan, bool, error) {
		for len(rest) == 0 {
			s, ok, err := spaces()
			if !ok || err != nil {
				return query.Scan{}, false, err
			}
			rest = q.In(s).Scans(start, end)
		}
		s := rest[0]
		rest = rest[1:]
		return s, true, nil
	}
}
