package source

import (
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
)

// A loaded takes an entity's properties as the client has read them. A PropertyList would copy
// them; the client makes a list for each entity that it loads, and does not keep it.
type loaded datastore.PropertyList

func (l *loaded) Load(properties []datastore.Property) error {
	*l = properties
	return nil
}

func (l *loaded) Save() ([]datastore.Property, error) { return *l, nil }

// Into returns what loads into each of some lists.
func Into(entities []datastore.PropertyList) []any {
	dst := make([]any, len(entities))
	for i := range entities {
		dst[i] = (*loaded)(&entities[i])
	}
	return dst
}

// Lookup gets the entities of keys of one namespace into dst, which is as for
// datastore's GetMulti. It returns which of them do not exist.
//
// The client takes keys for the same whose texts are: the id 7 and the name
// "7", or a name that contains what looks like another path element. It would
// give one the other's entity. Such keys are looked up in separate calls.
func Lookup(get func([]*datastore.Key, any) error, keys []*datastore.Key, dst []any) (missing []bool, err error) {
	missing = make([]bool, len(keys))
	for _, call := range Apart(keys) {
		callKeys, callDst := make([]*datastore.Key, len(call)), make([]any, len(call))
		for i, at := range call {
			callKeys[i], callDst[i] = keys[at], dst[at]
		}
		err := get(callKeys, callDst)
		var each datastore.MultiError
		if !errors.As(err, &each) {
			if err != nil {
				return nil, err
			}
			continue
		}
		for i, err := range each {
			switch err := property.IgnoreUndeclared(err); {
			case errors.Is(err, datastore.ErrNoSuchEntity):
				missing[call[i]] = true
			case err != nil:
				return nil, fmt.Errorf("read %s: %w", callKeys[i].Kind, err)
			}
		}
	}
	return missing, nil
}

// Apart groups the indexes of keys so that no group has two different keys that
// the client would take for the same. Almost always it is one group.
func Apart(keys []*datastore.Key) [][]int {
	var groups [][]int
	var texts []map[string]bool
	for i, k := range keys {
		text := k.String()
		g := 0
		for g < len(groups) && texts[g][text] {
			g++
		}
		if g == len(groups) {
			groups = append(groups, make([]int, 0, len(keys)-i))
			texts = append(texts, make(map[string]bool, len(keys)-i))
		}
		groups[g] = append(groups[g], i)
		texts[g][text] = true
	}
	return groups
}

// A Reader gets entities that are at some positions.
type Reader func(at []*keyspace.Position) (entities []datastore.PropertyList, missing []bool, err error)

// EntityReader returns a reader of whole entities.
func EntityReader(get func([]*datastore.Key, any) error) Reader {
	return func(at []*keyspace.Position) ([]datastore.PropertyList, []bool, error) {
		keys := keyspace.Keys(at)
		entities := make([]datastore.PropertyList, len(keys))
		missing, err := Lookup(get, keys, Into(entities))
		return entities, missing, err
	}
}
