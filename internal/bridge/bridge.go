// Package bridge lets mapper/mappertest run a mapper's function, which is nobody
// else's business. Package mapper sets its functions.
package bridge

import "cloud.google.com/go/datastore"

// An Effect is what a function asks for on one entity.
type Effect struct {
	Counters map[string]int64
	Writes   []Write // of the entity itself, if it was changed, comes last
}

// A Write is an entity that is put, or deleted.
type Write struct {
	Key        *datastore.Key
	Properties []datastore.Property
	Delete     bool
}

// Apply runs the function of a mapper.Definition on one entity, with parameters
// of its type.
var Apply func(definition, params any, key *datastore.Key, properties []datastore.Property) (Effect, error)

// Save returns the properties that are stored of an entity, which is a struct
// pointer or a datastore.PropertyLoadSaver.
var Save func(entity any) ([]datastore.Property, error)

// Seed has a mapper.Engine draw its random numbers from a seed, so that a test can be repeated.
var Seed func(engine any, seed uint64)

// Load sets what a pointer points to to its zero value, and loads an entity into
// it. What its type does not declare is left out.
var Load func(entity any, key *datastore.Key, properties []datastore.Property) error
