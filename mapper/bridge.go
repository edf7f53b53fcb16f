package mapper

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/bridge"
)

func init() {
	bridge.Apply, bridge.Save, bridge.Load = applyOnce, saveStored, loadStored
	bridge.Seed = func(engine any, seed uint64) { engine.(*Engine).seed(seed) }
}

// seed has the engine draw its random numbers from a seed.
func (e *Engine) seed(seed uint64) {
	var turn sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	e.random = func() uint64 {
		turn.Lock()
		defer turn.Unlock()
		return rng.Uint64()
	}
}

// applyOnce runs a mapper's function on one entity, for mappertest.
func applyOnce(definition, params any, key *datastore.Key, properties []datastore.Property) (bridge.Effect, error) {
	def := definition.(Definition).definition()
	if def.prepare == nil {
		return bridge.Effect{}, errors.New("the mapper was not made by Update or Visit")
	}
	if def.err != nil {
		return bridge.Effect{}, def.err
	}
	encoded, err := encodeParams(params)
	if err != nil {
		return bridge.Effect{}, err
	}
	run, err := def.prepare(encoded, false)
	if err != nil {
		return bridge.Effect{}, err
	}
	e, err := run(context.Background(), &jobRecord{ID: "mappertest"}, key, properties)
	if err != nil {
		return bridge.Effect{}, err
	}
	counters, err := e.counters.counters()
	if err != nil {
		return bridge.Effect{}, err
	}
	effect := bridge.Effect{Counters: counters}
	for _, m := range e.mutations {
		effect.Writes = append(effect.Writes, bridge.Write{Key: m.key, Properties: stored(m.properties), Delete: m.deletes})
	}
	return effect, nil
}

func saveStored(entity any) ([]datastore.Property, error) {
	properties, err := save(entity)
	return stored(properties), err
}

// stored returns properties as Datastore has them: without the fields for keys,
// which the client saves as properties and does not send, also inside entities. It
// shares nothing with them.
func stored(properties []datastore.Property) []datastore.Property {
	return dropKeys(cloneProperties(properties))
}

func dropKeys(properties []datastore.Property) []datastore.Property {
	properties = slices.DeleteFunc(properties, func(p datastore.Property) bool { return p.Name == "__key__" })
	for _, p := range properties {
		for _, el := range elementsOf(p.Value) {
			if e, ok := el.(*datastore.Entity); ok && e != nil {
				e.Properties = dropKeys(e.Properties)
			}
		}
	}
	return properties
}

// loadStored loads an entity into what a pointer points to. It is [load] for a
// type that is known only at run time.
func loadStored(entity any, key *datastore.Key, properties []datastore.Property) error {
	v := reflect.ValueOf(entity).Elem()
	v.SetZero() // the client adds to slices, and leaves fields without a property as they are
	if loader, ok := entity.(datastore.PropertyLoadSaver); ok {
		if keyed, ok := entity.(datastore.KeyLoader); ok {
			if err := keyed.LoadKey(key); err != nil {
				return err
			}
		}
		return recordError(loader.Load(properties))
	}
	fitting, err := schemaOf(v.Type()).fit(properties)
	if err != nil {
		return err
	}
	// The client reports the last mismatch only. So the key, which most structs have
	// no field for, comes first.
	return recordError(datastore.LoadStruct(entity, append([]datastore.Property{{Name: "__key__", Value: key}}, fitting...)))
}
