package mapper

import (
	"context"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/bridge"
)

func init() { bridge.Apply = applyOnce }

// applyOnce runs a mapper's function on one entity, for mappertest.
func applyOnce(definition, params any, key *datastore.Key, properties []datastore.Property) (bridge.Effect, error) {
	def := definition.(Definition).definition()
	if def.err != nil {
		return bridge.Effect{}, def.err
	}
	encoded, err := encodeParams(params)
	if err != nil {
		return bridge.Effect{}, err
	}
	run, err := def.prepare(encoded)
	if err != nil {
		return bridge.Effect{}, err
	}
	e, err := run(context.Background(), &jobRecord{ID: "mappertest", Masks: true}, key, properties)
	if err != nil {
		return bridge.Effect{}, err
	}
	effect := bridge.Effect{Counters: e.counters}
	for _, m := range e.mutations {
		effect.Writes = append(effect.Writes, bridge.Write{Key: m.key, Properties: m.properties, Delete: m.deletes})
	}
	return effect, nil
}
