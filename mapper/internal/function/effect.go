package function

import (
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// An Effect is everything that one attempt asks for, such as writes and counters. It is committed
// only if the attempt succeeds.
type Effect struct {
	Mutations []mutation
	Counters  tally.Counters
	Bytes     int    // approximate size of the mutations
	Collected []any  // values for the function over the whole page
	Seen      []Seen // other entities that the function has read, which must be unchanged at the commit

	Left    []undolog.Left          // entities that an undo does not restore
	Example func() []record.Example // makes the examples of writes that a rehearsal shows; nil: the job is no rehearsal
}

// A mutation is one write of an effect. It keeps the key itself, because a datastore.Mutation does
// not give access to its key.
type mutation struct {
	Key   *datastore.Key
	bytes int // the approximate size of the mutation

	Properties []datastore.Property // properties to put, unless On.Writes has them
	Deletes    bool                 // whether the mutation deletes the entity
	Inserts    bool                 // whether the mutation fails if the entity exists
	Edit       property.Edit        // the change of the attempt's own entity, if the mutation writes it
	On         wire.Condition       // the condition that must hold when the mutation commits
	*datastore.Mutation
}

// insert turns a put into an insert, which fails if the entity exists already. A put becomes an
// insert if the same function has inserted the entity before.
func (m *mutation) insert() {
	list := datastore.PropertyList(m.Properties)
	if m.On.Writes != nil {
		list = *wire.Unsent()
	}
	m.Inserts, m.Mutation = true, datastore.NewInsert(m.Key, &list)
}

// Wire returns the mutation as package wire commits it.
func (m mutation) Wire() wire.Mutation {
	if m.Deletes {
		return wire.Mutation{Deletes: m.Key, Condition: m.On}
	}
	return wire.Mutation{Mutation: m.Mutation, Condition: m.On}
}

// After returns the entity's state after the mutation.
func (m mutation) After() (wire.Stamp, error) {
	whole := m.Edit.Whole()
	switch {
	case m.Deletes:
		return wire.Stamp{Gone: true}, nil
	case whole != nil:
		return wire.Stamp{Entity: whole}, nil
	case m.On.Writes != nil:
		return wire.Stamp{Entity: m.On.Writes}, nil
	}
	e, err := pbvalue.Entity(m.Key, property.Stored(m.Properties), false)
	return wire.Stamp{Entity: e}, err
}

// puts returns the properties that the mutation stores.
func (m mutation) puts() []datastore.Property {
	if m.On.Writes != nil {
		return pbvalue.Properties(m.On.Writes)
	}
	return m.Properties
}

// Incomplete removes the puts with incomplete keys from the effect, and returns them as another
// effect. The page gets IDs for them from the database, so that it knows which entities it puts.
func (e *Effect) Incomplete() (incomplete Effect) {
	if !slices.ContainsFunc(e.Mutations, func(m mutation) bool { return m.Key.Incomplete() }) {
		return incomplete
	}
	var complete []mutation
	for _, m := range e.Mutations {
		if m.Key.Incomplete() {
			incomplete.Mutations = append(incomplete.Mutations, m)
		} else {
			complete = append(complete, m)
		}
	}
	e.Mutations = complete
	return incomplete
}

// Keys returns the keys of the mutations.
func (e *Effect) Keys() []*datastore.Key {
	keys := make([]*datastore.Key, len(e.Mutations))
	for i, m := range e.Mutations {
		keys[i] = m.Key
	}
	return keys
}

// Complete replaces the keys of the effect's mutations, which are all puts, by complete keys.
func (e *Effect) Complete(keys []*datastore.Key) {
	for i := range e.Mutations {
		m := &e.Mutations[i]
		list := datastore.PropertyList(m.Properties)
		m.Key, m.Mutation = keys[i], datastore.NewUpsert(keys[i], &list)
	}
}
