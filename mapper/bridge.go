package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

func init() {
	bridge.Apply, bridge.Save, bridge.Load = applyOnce, saveStored, loadStored
	bridge.Seed = func(engine any, seed uint64) { engine.(*Engine).seed(seed) }
}

// applyOnce runs a mapper's function on one entity, for mappertest.
func applyOnce(definition, params any, key *datastore.Key, properties []datastore.Property) (bridge.Effect, error) {
	def := definition.(Definition).definition()
	if def.Prepare == nil {
		return bridge.Effect{}, errors.New("the mapper was not made by Update or Visit")
	}
	if def.Err != nil {
		return bridge.Effect{}, def.Err
	}
	encoded, err := encodeParams(params)
	if err != nil {
		return bridge.Effect{}, err
	}
	run, err := def.Prepare(encoded, false)
	if err != nil {
		return bridge.Effect{}, err
	}
	e, err := run(context.Background(), function.Job{Ref: record.Ref{ID: "mappertest"}}, key, properties)
	if err != nil {
		return bridge.Effect{}, err
	}
	counters, err := e.Counters.Values()
	if err != nil {
		return bridge.Effect{}, err
	}
	effect := bridge.Effect{Counters: counters}
	for _, m := range e.Mutations {
		effect.Writes = append(effect.Writes, bridge.Write{Key: m.Key, Properties: property.Stored(m.Properties), Delete: m.Deletes})
	}
	return effect, nil
}

func saveStored(entity any) ([]datastore.Property, error) {
	properties, err := property.Save(entity)
	return property.Stored(properties), err
}

// loadStored loads an entity into what a pointer points to.
func loadStored(entity any, key *datastore.Key, properties []datastore.Property) error {
	return property.IgnoreUndeclared(property.LoadInto(entity, key, properties))
}
