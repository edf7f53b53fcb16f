package source

import (
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A loaded is a destination for the client that keeps the list of properties as the client has read
// it. A PropertyList would copy the list, which is not needed: the client makes a new list for each
// entity, and does not keep it.
type loaded datastore.PropertyList

func (l *loaded) Load(properties []datastore.Property) error {
	*l = properties
	return nil
}

func (l *loaded) Save() ([]datastore.Property, error) { return *l, nil }

// Into returns n destinations for the client that drop what is loaded into them.
func Into(n int) []any {
	dst := make([]any, n)
	for i := range dst {
		dst[i] = new(loaded)
	}
	return dst
}

// Lookup reads the entities with the keys, all in one namespace, into dst, as datastore's GetMulti
// does. The result says which of them do not exist.
//
// The client confuses keys that have the same text, such as the ID 7 and the name "7". The same
// happens to a name that looks like another path element. The client would return one key's entity
// for the other. So such keys are looked up in separate calls.
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

// Apart returns the indexes of keys in groups, so that no group has two different keys with the
// same text. There is nearly always one group.
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

// A Get is a function that looks up entities as they are stored. The first keys may be of records:
// the client loads these into the given values, and their stamps have no entities.
type Get func(keys []*datastore.Key, records ...any) ([]wire.Stamp, error)

// taking returns a Get that calls get, a method of the client. The context of get must be made for
// taken, so that taken gets the entities.
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

// errUntaken says that the client's connection lacks the interceptor. That should not happen,
// because mapper.NewEngine checks it.
var errUntaken = fault.Fatal(errors.New("the client was not made by mapper.NewClient, or with mapper.ClientOption: " +
	"entities can't be read as they are stored"))

// InTransaction returns a Get that reads in the transaction tx. The transaction must run with the
// context that [wire.TakenBy] or [wire.Noting] returned together with taken. Through this context,
// taken receives the entities that the Get looks up.
func InTransaction(tx *datastore.Transaction, taken *wire.Taken) Get {
	return taking(tx.GetMulti, taken)
}

// A Reader is a function that reads the entities at some positions.
type Reader func(at []*keyspace.Position) ([]wire.Stamp, error)

// EntityReader returns a Reader that looks up whole entities by get.
func EntityReader(get Get) Reader {
	return func(at []*keyspace.Position) ([]wire.Stamp, error) { return get(keyspace.Keys(at)) }
}
