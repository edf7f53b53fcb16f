package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Get reads another entity into dst, in the function of an [Update]. The destination is a struct
// pointer or a datastore.PropertyLoadSaver, and properties that it does not declare are ignored. If
// the entity does not exist, the error is datastore.ErrNoSuchEntity. If the key is invalid, if a
// value does not fit dst, or in a [Visit], the error is [Permanent].
//
// The effect of the function commits only if nobody else has changed the read entity or the
// function's own entity since. Otherwise the function runs again on the new state. For this, the
// commit reads these entities once more, also if the function writes nothing or fails.
//
// Get sees the writes of the function's calls for earlier entities, in the order of keys, as if
// each call ran in a transaction of its own. It does not see writes of the same call. Each Get is a
// call of the database, unless the page has read the entity already. [UpdateReading] reads for a
// whole page in one call.
func (e *Entity[T]) Get(ctx context.Context, key *datastore.Key, dst any) error {
	missing, err := e.attempt.Get(ctx, []*datastore.Key{key}, func(_ int, stored *pb.Entity) error {
		return loadOther(key, stored, dst)
	})
	if err == nil && missing[0] {
		return datastore.ErrNoSuchEntity
	}
	return err
}

// GetMulti is [Entity.Get] of several entities in one call. The destination is a slice of structs,
// of pointers to structs or of datastore.PropertyList, and as long as keys. If some entities do not
// exist, the error is a datastore.MultiError with datastore.ErrNoSuchEntity in their places.
func (e *Entity[T]) GetMulti(ctx context.Context, keys []*datastore.Key, dst any) error {
	all := reflect.ValueOf(dst)
	if all.Kind() != reflect.Slice || all.Len() != len(keys) {
		return fault.Permanent(fmt.Errorf("GetMulti: dst is a %T, which has to be a slice of %d", dst, len(keys)))
	}
	if len(keys) == 0 {
		return nil
	}
	missing, err := e.attempt.Get(ctx, keys, func(i int, stored *pb.Entity) error {
		at := all.Index(i)
		if at.Kind() != reflect.Pointer {
			return loadOther(keys[i], stored, at.Addr().Interface())
		}
		if at.IsNil() {
			at.Set(reflect.New(at.Type().Elem()))
		}
		return loadOther(keys[i], stored, at.Interface())
	})
	if err != nil {
		return err
	}
	each, some := make(datastore.MultiError, len(keys)), false
	for i, gone := range missing {
		if some = some || gone; gone {
			each[i] = datastore.ErrNoSuchEntity
		}
	}
	if some {
		return each
	}
	return nil
}

// loadOther loads another stored entity into dst. If a value does not fit, it returns a permanent
// error.
func loadOther(key *datastore.Key, stored *pb.Entity, dst any) error {
	if v := reflect.ValueOf(dst); v.Kind() != reflect.Pointer || v.IsNil() {
		return fault.Permanent(fmt.Errorf("Get %v: dst is a %T, which has to be a pointer that is not nil", key, dst))
	}
	err := property.IgnoreUndeclared(property.LoadInto(dst, key, pbvalue.Properties(stored)))
	if err != nil {
		return fault.Permanent(fmt.Errorf("Get %v: %w", key, err))
	}
	return nil
}

// Insert puts another entity that must not exist yet, in the commit of an [Update]'s page. The
// source is a struct pointer or a datastore.PropertyLoadSaver, and the key must be complete. If
// that entity exists when the page is committed, or an earlier call in the page has put it, the
// entity of this call is a failure. The failure names both entities, and the call has no effect.
func (e *Entity[T]) Insert(key *datastore.Key, src any) { e.attempt.Insert(key, src) }

// InsertStored is [Entity.Insert] of an entity in the protocol's form, which is saved byte for
// byte: see [Entity.PutStored]. Use it to copy an entity to a key without overwriting another one.
func (e *Entity[T]) InsertStored(key *datastore.Key, entity *pb.Entity) {
	e.attempt.InsertStored(key, entity)
}

// UpdateReading is [Update] for a function that reads other entities by [Entity.Get] or
// [Entity.GetMulti]. It saves calls of the database.
//
// The argument reads is a function that returns the keys of the entities that fn will read. It may
// use e.Key and e.Value, and must not write. The page first calls it for all of its entities, and
// then reads all keys in one call of the database. If reads leaves out a key or panics, fn reads
// the entities from the database.
func UpdateReading[T, P any](
	name string, reads func(e *Entity[T], params P) []*datastore.Key,
	fn func(ctx context.Context, e *Entity[T], params P) error,
) *Mapper[P] {
	m := Update(name, fn)
	if reads == nil {
		m.def.Err = errors.Join(m.def.Err, errors.New("the function that says what is read is nil"))
		return m
	}
	m.def.PrepareKeys = func(encoded json.RawMessage, keysOnly bool) (function.Keys, error) {
		var params P
		if err := function.DecodeParams(encoded, &params); err != nil {
			return nil, err
		}
		return func(key *datastore.Key, stored *pb.Entity) (keys []*datastore.Key, err error) {
			defer function.Recovered(&err)
			key = value.CloneKey(key) // the function may change it
			e := &Entity[T]{Key: key, attempt: function.NewAttempt(record.Ref{}, function.Update, key), stored: stored}
			if !keysOnly {
				if err := property.LoadStored(key, stored, &e.Value); err != nil {
					return nil, err
				}
			}
			return reads(e, params), nil
		}, nil
	}
	return m
}
