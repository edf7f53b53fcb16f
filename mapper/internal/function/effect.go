package function

import (
	"slices"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// An Effect is what one attempt asks for, if it succeeds.
type Effect struct {
	Mutations []mutation
	Counters  tally.Counters
	Bytes     int    // of the mutations, about
	Collected []any  // for the function over the page
	Seen      []Seen // other entities that it has read

	Left    []undolog.Left          // as it is, by an undo
	Example func() []record.Example // of what a rehearsal would do; nil: nothing
}

// A mutation keeps its key, which the client's own hides.
type mutation struct {
	Key   *datastore.Key
	bytes int // about

	Properties []datastore.Property // what is put, unless its condition says that
	Changed    []string             // names of them, if it is the entity itself
	Deletes    bool                 // nothing is: the entity is deleted
	Inserts    bool                 // it is put only if it is not there
	Whole      *pb.Entity           // what the entity itself becomes
	On         wire.Condition       // on which its commit takes place
	*datastore.Mutation
}

// insert has the mutation, which puts an entity, be an insert: an earlier one of the same function
// is.
func (m *mutation) insert() {
	list := datastore.PropertyList(m.Properties)
	if m.On.Writes != nil {
		list = *wire.Unsent()
	}
	m.Inserts, m.Mutation = true, datastore.NewInsert(m.Key, &list)
}

// Wire returns the mutation as a commit has it.
func (m mutation) Wire() wire.Mutation {
	if m.Deletes {
		return wire.Mutation{Deletes: m.Key, Condition: m.On}
	}
	return wire.Mutation{Mutation: m.Mutation, Condition: m.On}
}

// After returns what an entity is once the mutation has taken effect.
func (m mutation) After() (wire.Stamp, error) {
	switch {
	case m.Deletes:
		return wire.Stamp{Gone: true}, nil
	case m.Whole != nil:
		return wire.Stamp{Entity: m.Whole}, nil
	case m.On.Writes != nil:
		return wire.Stamp{Entity: m.On.Writes}, nil
	}
	e, err := pbvalue.Entity(m.Key, property.Stored(m.Properties), false)
	return wire.Stamp{Entity: e}, err
}

// puts returns the properties of what a mutation puts.
func (m mutation) puts() []datastore.Property {
	if m.On.Writes != nil {
		return pbvalue.Properties(m.On.Writes)
	}
	return m.Properties
}

// Incomplete takes those mutations out of the effect that put entities under keys which the
// database has to complete.
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

// Complete has the mutations, which put entities, be under other keys.
func (e *Effect) Complete(keys []*datastore.Key) {
	for i := range e.Mutations {
		m := &e.Mutations[i]
		list := datastore.PropertyList(m.Properties)
		m.Key, m.Mutation = keys[i], datastore.NewUpsert(keys[i], &list)
	}
}
