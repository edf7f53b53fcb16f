// Package bridge lets mapper/mappertest run a mapper's function, which is nobody
// else's business.
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
// of its type. Package mapper sets it.
var Apply func(definition, params any, key *datastore.Key, properties []datastore.Property) (Effect, error)
