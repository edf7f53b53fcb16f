// Package mappertest is for the tests of mappers.
//
// [Apply] runs a mapper's function on one entity, without any server. [Run] runs
// whole jobs on the embedded emulators, in a testing/synctest bubble, where hours
// pass in milliseconds; with [Options.Seed] calls and deliveries go wrong, as they
// do in production.
package mappertest

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/bridge"
	"github.com/scattermap/scattermap/mapper"
)

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// A Result is what a function did with one entity.
type Result struct {
	// Err is what the function returned, or its panic, or what is wrong with what it
	// wanted to write. Then nothing else is set.
	Err error

	// Changed says that the entity was changed, or touched, and would be written.
	Changed bool

	// Deleted says that the function deleted the entity.
	Deleted bool

	// Counters are what the function counted.
	Counters map[string]int64

	// Put are the other entities that the function put, by the text of their keys.
	Put map[string]datastore.PropertyList

	// Removed are the keys of the other entities that the function deleted.
	Removed []*datastore.Key
}

// Apply runs a mapper's function on an entity, which is a struct pointer or a
// datastore.PropertyLoadSaver, as it is stored: it is saved, loaded into the
// mapper's type, and loaded back with what has changed. Its key is of a kind
// "Entity", with the name "test"; see [ApplyKey] for others.
func Apply[P any](t TB, m *mapper.Mapper[P], entity any, params P) Result {
	t.Helper()
	return ApplyKey(t, m, datastore.NameKey("Entity", "test", nil), entity, params)
}

// ApplyKey is [Apply] for an entity of a key.
func ApplyKey[P any](t TB, m *mapper.Mapper[P], key *datastore.Key, entity any, params P) Result {
	t.Helper()
	stored, err := save(entity)
	if err != nil {
		t.Fatalf("mappertest: the entity can't be saved: %v", err)
	}
	effect, err := bridge.Apply(m, params, key, stored)
	if err != nil {
		return Result{Err: err}
	}
	r := Result{Counters: effect.Counters, Put: make(map[string]datastore.PropertyList)}
	for _, w := range effect.Writes {
		switch own := w.Key.Equal(key); {
		case own && w.Delete:
			r.Deleted = true
		case own:
			r.Changed = true
			if err := load(entity, w.Properties); err != nil {
				t.Fatalf("mappertest: the changed entity can't be loaded: %v", err)
			}
		case w.Delete:
			r.Removed = append(r.Removed, w.Key)
		default:
			r.Put[w.Key.String()] = w.Properties
		}
	}
	return r
}

func save(entity any) ([]datastore.Property, error) {
	if saver, ok := entity.(datastore.PropertyLoadSaver); ok {
		return saver.Save()
	}
	return datastore.SaveStruct(entity)
}

func load(entity any, properties []datastore.Property) error {
	if loader, ok := entity.(datastore.PropertyLoadSaver); ok {
		return loader.Load(properties)
	}
	return datastore.LoadStruct(entity, properties)
}
