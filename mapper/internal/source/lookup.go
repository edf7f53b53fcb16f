package source

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A loaded is a value into which the Go client loads an entity's properties. It keeps the list that
// the client has made. (A PropertyList would copy it, which is not needed, because the client makes
// a new list for each entity.)
type loaded datastore.PropertyList

func (l *loaded) Load(properties []datastore.Property) error {
	*l = properties
	return nil
}

func (l *loaded) Save() ([]datastore.Property, error) { return *l, nil }

// Into returns n values into which the Go client can load entities, for callers that do not need
// the loaded properties.
func Into(n int) []any {
	dst := make([]any, n)
	for i := range dst {
		dst[i] = new(loaded)
	}
	return dst
}

// Lookup reads the entities with these keys into dst, as datastore's GetMulti does. All keys must
// be in one namespace. The result says for each key whether its entity is missing.
//
// The client confuses different keys that have the same text, and would return one key's entity for
// the other. Examples are the ID 7 and the name "7", and a name that looks like another path
// element. So Lookup reads such keys in separate calls.
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

// Apart divides keys into groups such that no group has two different keys with the same text,
// because the Go client confuses these. It returns the indexes of each group's keys. Nearly always,
// there is only one group.
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

// A Get is a function that looks up entities and returns their stamps: each entity as it is stored,
// with its version. If there are records, they are pointers for the entities of the first keys. The
// client loads these entities into the records, and their stamps have only versions.
type Get func(keys []*datastore.Key, records ...any) ([]wire.Stamp, error)

// taking returns a [Get] that looks up entities by get, a method of the Go client. The entities
// come from taken. For this, get must use the context that was made together with taken.
func taking(get func([]*datastore.Key, any) error, taken *wire.Taken) Get {
	return func(keys []*datastore.Key, records ...any) ([]wire.Stamp, error) {
		taken.Want(keys, len(records))
		missing, err := Lookup(get, keys, append(records, Into(len(keys)-len(records))...))
		stamps := taken.Take(keys)
		for i := range stamps {
			if err == nil && stamps[i].Gone && !missing[i] {
				err = errUntaken
			}
		}
		return stamps, err
	}
}

// StoredInParts is like [Source.Stored], but the [Get] looks up the keys in parts of up to partKeys, in
// calls side by side. The result is there sooner than from one call for all.
func (src Source) StoredInParts(ctx context.Context) Get {
	return func(keys []*datastore.Key, records ...any) ([]wire.Stamp, error) {
		var group errgroup.Group
		group.SetLimit(Parallel)
		stamps := make([]wire.Stamp, len(keys))
		for at := 0; at < len(keys); at += partKeys {
			end := min(len(keys), at+partKeys)
			some, into := keys[at:end], records[min(at, len(records)):min(end, len(records))]
			group.Go(func() error {
				found, err := src.Stored(ctx)(some, slices.Clone(into)...)
				copy(stamps[at:end], found)
				return err
			})
		}
		return stamps, group.Wait()
	}
}

// partKeys is the largest number of keys in a call of [Source.StoredInParts].
const partKeys = 125

// errUntaken says that the client's connection lacks scattermap's interceptor, so the entities were
// not received as stored. This should not happen, because mapper.NewEngine checks the client.
var errUntaken = fault.Fatal(errors.New("the client was not made by mapper.NewClient, or with mapper.ClientOption: " +
	"entities can't be read as they are stored"))

// InTransaction returns a [Get] that reads in the transaction tx. The transaction must use the
// context that [wire.TakenBy] or [wire.Noting] has returned together with taken. Through this
// context, taken receives the entities.
func InTransaction(tx *datastore.Transaction, taken *wire.Taken) Get {
	return taking(tx.GetMulti, taken)
}

// A Reader is a function that reads the entities at some positions, with their versions.
type Reader func(at []*keyspace.Position) ([]wire.Stamp, error)

// EntityReader returns a Reader that looks up whole entities by get.
func EntityReader(get Get) Reader {
	return func(at []*keyspace.Position) ([]wire.Stamp, error) { return get(keyspace.Keys(at)) }
}
