// Package mappertest helps to test mappers.
//
// [Apply] runs a mapper's function on one entity, and [ApplyBatch] on a batch, without a server.
// [Run] runs whole jobs on the embedded emulators, in a testing/synctest bubble, where hours pass
// in milliseconds. With [Options].Seed, calls and deliveries fail as they do in production.
//
//	team := Team{Seats: 20}
//	r := mappertest.Apply(t, SetLarge, &team, mapper.NoParams{})
//	if r.Err != nil || !team.Large {
//		t.Errorf("%+v, %+v", r, team)
//	}
//
// docs/guide.md has a test of a whole job.
package mappertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TB is the part of *testing.T that [Apply], [ApplyKey] and [ApplyBatch] use.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// A Result is the effect of a mapper's function on one entity: see [Apply].
type Result struct {
	// Err is the error of the function, or its panic. It is nil if the function has returned
	// mapper.Skip. It is also set if the mapper, its parameters, the entity or a write is invalid.
	// If it is set, the other fields are empty, and the entity is unchanged.
	Err error

	// Changed says that the entity would be written: the function of a [mapper.Update] changed it
	// or called Touch, or the stored entity lacked a field of the mapper's type.
	Changed bool

	// Deleted says that the function deleted the entity.
	Deleted bool

	// Counters are the function's counters, by name.
	Counters map[string]int64

	// Puts are the other entities that the function put, in the order of their first Put.
	Puts []Put

	// Deletes are the keys of the other entities that the function has deleted.
	Deletes []*datastore.Key
}

// A Put is another entity that the function put.
type Put struct {
	Key        *datastore.Key // the key of the put entity; incomplete if the key passed to Put was
	Properties datastore.PropertyList
}

// Apply runs a mapper's function once on one entity, without a database, and returns its effects.
// The entity is a pointer to a struct or to a datastore.PropertyLoadSaver. Apply saves it to
// properties, loads them into the mapper's type, and calls the function.
//
// If the entity would be written, Apply also sets it to its new state: it is zeroed, and the
// properties that would be stored are loaded. Properties that its type does not declare are left
// out. To test how the mapper handles entities that were stored by an older type, pass a value of
// the older type, or a datastore.PropertyList.
//
// The entity's key has the kind "Entity" and the name "test"; [ApplyKey] takes another key. Apply
// calls t.Fatalf if the mapper or the entity is nil, or if the entity can't be saved or loaded.
//
// Entity.Get has no database and returns an error. If the mapper is a mapper.VisitPages, only its
// first function runs. Use [Run] to test a function that calls Get, or the second function.
func Apply[P any](t TB, m *mapper.Mapper[P], entity any, params P) Result {
	t.Helper()
	return ApplyKey(t, m, datastore.NameKey("Entity", "test", nil), entity, params)
}

// ApplyKey does the same as [Apply], for an entity with the given key. The key must be complete.
func ApplyKey[P any](t TB, m *mapper.Mapper[P], key *datastore.Key, entity any, params P) Result {
	t.Helper()
	return ApplyContext(context.Background(), t, m, key, entity, params)
}

// ApplyContext does the same as [ApplyKey], for a function that uses its context. With a context
// from [Env.WithEngine], [mapper.EngineFromContext] returns an engine, so that the function can
// start jobs and read other entities. With any other context, EngineFromContext returns nil.
func ApplyContext[P any](
	ctx context.Context, t TB, m *mapper.Mapper[P], key *datastore.Key, entity any, params P,
) Result {
	t.Helper()
	if err := check(m, key, entity); err != nil {
		t.Fatalf("mappertest: %v", err)
	}
	effect, err := run(ctx, m, key, imageOf(t, key, entity), params)
	return result(t, key, entity, effect, err)
}

// ApplyBatch runs the function of a [mapper.UpdateBatches] or [mapper.VisitBatches] once, on one
// batch of entities, and returns the effects for each of them, as [Apply] does. If the function
// returns an error or panics, each result has that error: a job would run the function again on
// each half of the batch.
//
// The entities have the kind "Entity" and the IDs 1, 2 and so on. For the context see
// [ApplyContext]. ApplyBatch also calls t.Fatalf if the mapper has no batches, or if there are more
// entities than a batch holds.
func ApplyBatch[E, P any](
	ctx context.Context, t TB, m *mapper.Mapper[P], entities []*E, params P,
) []Result {
	t.Helper()
	batch := make([]function.Subject, len(entities))
	for i, e := range entities {
		key := datastore.IDKey("Entity", int64(i+1), nil)
		if err := check(m, key, e); err != nil {
			t.Fatalf("mappertest: entity %d: %v", i+1, err)
		}
		batch[i] = function.Subject{Job: testJob, Key: key, Stored: imageOf(t, key, e)}
	}
	results := make([]Result, len(entities))
	call, most, err := bridge.PrepareBatch(m, params)
	if err != nil || len(batch) > most {
		t.Fatalf("mappertest: a batch of %d entities, of at most %d: %v", len(batch), most, err)
	}
	answers, err := call(ctx, batch)
	for i, e := range entities {
		a := function.Answer{Err: err}
		if err == nil {
			a = answers[i]
		}
		results[i] = result(t, batch[i].Key, e, a.Effect, a.Err)
	}
	return results
}

// imageOf returns the entity as it would be stored.
func imageOf(t TB, key *datastore.Key, entity any) *pb.Entity {
	t.Helper()
	stored, err := property.Save(entity)
	if err != nil {
		t.Fatalf("mappertest: the entity, a %T, can't be saved: %v", entity, err)
	}
	image, err := pbvalue.Entity(key, stored, false)
	if err != nil {
		t.Fatalf("mappertest: the entity, a %T, can't be stored: %v", entity, err)
	}
	return image
}

// result returns the Result for an effect or an error of the function. It sets the entity to its
// new state.
func result(t TB, key *datastore.Key, entity any, effect *function.Effect, err error) Result {
	t.Helper()
	if err != nil {
		return Result{Err: err}
	}
	counters, err := effect.Counters.Values()
	if err != nil {
		return Result{Err: err}
	}
	r := Result{Counters: counters}
	for _, w := range effect.Mutations {
		switch own := w.Key.Equal(key); {
		case own && w.Deletes:
			r.Deleted = true
		case own:
			r.Changed = true
			err := property.IgnoreUndeclared(property.LoadInto(entity, key, pbvalue.Properties(w.On.Writes)))
			if err != nil {
				t.Fatalf("mappertest: the changed entity can't be loaded into a %T: %v", entity, err)
			}
		case w.Deletes:
			r.Deletes = append(r.Deletes, w.Key)
		default:
			put := property.Stored(w.Properties)
			if w.On.Writes != nil {
				put = pbvalue.Properties(w.On.Writes)
			}
			r.Puts = append(r.Puts, Put{w.Key, put})
		}
	}
	return r
}

// testJob is the job for which Apply calls a mapper's function.
var testJob = function.Job{Ref: record.Ref{ID: "mappertest"}}

// run calls a mapper's function once with a stored entity.
func run(
	ctx context.Context, definition any, key *datastore.Key, stored *pb.Entity, params any,
) (*function.Effect, error) {
	call, err := bridge.Prepare(definition, params)
	if err != nil {
		return nil, err
	}
	return call(ctx, testJob, key, stored)
}

// check returns an error if the mapper, the key or the entity can't be used.
func check[P any](m *mapper.Mapper[P], key *datastore.Key, entity any) error {
	v := reflect.ValueOf(entity)
	switch {
	case m == nil:
		return errors.New("the mapper is nil")
	case key == nil:
		return errors.New("the key is nil")
	case key.Incomplete():
		return fmt.Errorf("the key %v is incomplete: a stored entity has a complete one", key)
	case v.Kind() != reflect.Pointer:
		return fmt.Errorf("the entity is a %T, want a pointer", entity)
	case v.IsNil():
		return fmt.Errorf("the entity is a nil %T", entity)
	}
	return nil
}
