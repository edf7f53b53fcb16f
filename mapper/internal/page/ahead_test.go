package page

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// TestLookAhead checks which of the entities that a mapper names are read in advance.
func TestLookAhead(t *testing.T) {
	for _, c := range []struct {
		name string
		keys function.Keys
		gone bool // whether entity 2 was deleted
		want string
	}{
		{name: "one each", keys: func(key *datastore.Key, _ *pb.Entity) ([]*datastore.Key, error) {
			return []*datastore.Key{keyOf(10 * key.ID)}, nil
		}, want: "[[10 20 30]]"},
		{name: "one is gone", gone: true, keys: func(key *datastore.Key, _ *pb.Entity) ([]*datastore.Key, error) {
			return []*datastore.Key{keyOf(10 * key.ID)}, nil
		}, want: "[[10 30]]"},
		{name: "keys that can't be read", keys: func(key *datastore.Key, _ *pb.Entity) ([]*datastore.Key, error) {
			return []*datastore.Key{nil, datastore.IncompleteKey("K", nil), keyOf(10 * key.ID)}, nil
		}, want: "[[10 20 30]]"},
		{name: "one fails", keys: func(key *datastore.Key, _ *pb.Entity) (_ []*datastore.Key, err error) {
			if key.ID == 2 {
				err = errBad
			}
			return []*datastore.Key{keyOf(10 * key.ID)}, err
		}, want: "[[10 30]]"},
		{name: "one hangs", keys: func(key *datastore.Key, _ *pb.Entity) (_ []*datastore.Key, err error) {
			if key.ID == 2 {
				time.Sleep(time.Hour)
			}
			return []*datastore.Key{keyOf(10 * key.ID)}, nil
		}, want: "[]"},
		{name: "none", keys: func(*datastore.Key, *pb.Entity) ([]*datastore.Key, error) {
			return nil, nil
		}, want: "[]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := kindOf(1, 2, 3)
			if c.gone {
				delete(k.n, 2)
			}
			p := over(k, function.Update, func(*call) error { return nil }, 1, 2, 3)
			calls := new(atomic.Int64)
			p.Keys = func(key *datastore.Key, e *pb.Entity) ([]*datastore.Key, error) {
				calls.Add(1)
				return c.keys(key, e)
			}
			p.Job.PageTime = int64(time.Hour)
			o, err := p.Run(t.Context())
			if got := fmt.Sprint(k.looks); err != nil || o.Reached != 3 || got != c.want {
				t.Errorf("%s: %v, looked up %s, want %s", c.name, err, got, c.want)
			}
			time.Sleep(2 * time.Hour) // until the hanging call has returned
			if n := calls.Load(); (n == 2) != (c.gone || c.name == "one hangs") {
				t.Errorf("%s: the keys of %d entities are asked for", c.name, n)
			}
		})
	}
}

// TestLookAheadOnce checks that an entity whose state is already known is not read again. It also
// checks that a page whose delivery has ended reads nothing.
func TestLookAheadOnce(t *testing.T) {
	k := kindOf(1, 2, 7)
	p := over(k, function.Update, func(*call) error { return nil }, 1, 2)
	p.Keys = func(*datastore.Key, *pb.Entity) ([]*datastore.Key, error) {
		return []*datastore.Key{keyOf(7), keyOf(8)}, nil
	}
	o := new(Results)
	o.known.note(keyOf(7), k.stamp(7))
	c := &chunk{at: p.At, entities: []wire.Stamp{k.stamp(1), k.stamp(2)}}
	if p.lookAhead(t.Context(), o, c); fmt.Sprint(k.looks) != "[[8]]" {
		t.Errorf("looked up %v", k.looks)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k.looks = nil
	if p.lookAhead(ctx, new(Results), c); len(k.looks) > 0 {
		t.Errorf("its delivery has ended: looked up %v", k.looks)
	}
	p.Keys = func(*datastore.Key, *pb.Entity) ([]*datastore.Key, error) { return nil, nil }
	if o, err := p.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("its delivery has ended: %+v, %v", o, err)
	}
}

// TestLookUp checks that many entities are read in as few calls as possible, each entity once.
// There must be no call after the delivery has ended or after another call has failed.
func TestLookUp(t *testing.T) {
	k := kindOf(idsTo(record.MaxPageSize + 5)...)
	var keys []*datastore.Key
	for _, id := range append(idsTo(record.MaxPageSize+5), 1, 2) {
		keys = append(keys, keyOf(id))
	}
	var o others
	all, err := o.lookUp(t.Context(), k.get, keys)
	if n := o.reads.Load(); n != record.MaxPageSize+5 {
		t.Errorf("%d reads are counted", n)
	}
	if err != nil || len(all) != len(keys) || len(k.looks) != 2 || len(k.looks[0]) != record.MaxPageSize ||
		len(k.looks[1]) != 5 {
		t.Errorf("%d entities in %d calls, %v", len(all), len(k.looks), err)
	}
	for i, s := range all {
		if n := s.Entity.Properties["N"].GetIntegerValue(); n != keys[i].ID {
			t.Errorf("entity %d has %d", keys[i].ID, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	get := func(some []*datastore.Key, records ...any) ([]wire.Stamp, error) {
		cancel()
		return k.get(some, records...)
	}
	k.looks = nil
	if _, err := o.lookUp(ctx, get, keys); !errors.Is(err, context.Canceled) || len(k.looks) != 1 {
		t.Errorf("its delivery ends meanwhile: %d calls, %v", len(k.looks), err)
	}
	k.looks, k.down = nil, errBad
	if _, err := o.lookUp(t.Context(), k.get, keys); !errors.Is(err, errBad) || len(k.looks) != 1 {
		t.Errorf("the database is down: %d calls, %v", len(k.looks), err)
	}
}

// TestClosedMeanwhile abandons a function while it reads. The function must get no entity, and must
// not change what other functions see.
func TestClosedMeanwhile(t *testing.T) {
	k, o := kindOf(7), new(Results)
	v := &view{outcome: o}
	v.get = func(keys []*datastore.Key, records ...any) ([]wire.Stamp, error) {
		v.close()
		return k.get(keys, records...)
	}
	if _, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); !errors.Is(err, errClosed) ||
		len(o.known.stamps) > 0 {
		t.Errorf("%v, %v is known", err, o.known.stamps)
	}
	v = &view{outcome: o, get: k.get}
	k.down = errBad
	if _, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); !errors.Is(err, errBad) || len(o.known.stamps) > 0 {
		t.Errorf("%v, %v is known", err, o.known.stamps)
	}
}

// TestWrittenBadly checks a put that can't be stored. It must be an error for the functions that
// read its entity.
func TestWrittenBadly(t *testing.T) {
	o := new(Results)
	e := effectOf(write{id: 7})
	e.Mutations[0].Properties = []datastore.Property{{Name: "N", Value: make(chan int)}}
	o.results = append(o.results, result{at: keyspace.At(keyOf(1)), effect: e})
	v := &view{outcome: o, place: 1, get: kindOf(7).get}
	if _, known := v.Known(keyOf(7)); known {
		t.Error("it is known")
	}
	if all, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); err == nil {
		t.Errorf("%+v", all)
	}
	if _, known := (&view{outcome: o, place: 0}).Known(keyOf(7)); known {
		t.Error("an entity before it knows of it")
	}
}
