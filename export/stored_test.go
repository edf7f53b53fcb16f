package export_test

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// unusualKey returns the n-th of a number of keys with unusual kinds, IDs and names.
func unusualKey(n int64) *datastore.Key {
	root := &datastore.Key{Kind: "Root/日本", ID: math.MinInt64 + n, Namespace: "north"}
	parent := &datastore.Key{Kind: `"of" it`, Name: strings.Repeat("é", 750), Parent: root, Namespace: "north"}
	key := &datastore.Key{Kind: "Odd/日本", ID: -n, Parent: parent, Namespace: "north"}
	if n%2 == 0 {
		key.ID, key.Name = 0, "-1\x00,\r\n\"\U0010ffff"
	}
	return key
}

// TestEntitiesAsStored exports random entities with unusual keys, names and values, such as
// meanings and keys of other projects. Each entity in the files of each format must equal the
// stored one, except for the project of the database itself.
func TestEntitiesAsStored(t *testing.T) {
	type nothing = mapper.NoParams
	seed := testflag.Seed(t)
	put := mapper.Update("put", func(_ context.Context, e *mapper.Entity[nothing], _ nothing) error {
		rng := rand.New(rand.NewPCG(seed, uint64(e.Key.ID)))
		e.PutStored(unusualKey(e.Key.ID), anyentity.New(rng, e.Stored().Key, false))
		return nil
	})
	var mu sync.Mutex
	stored := make(map[string]*pb.Entity)
	look := mapper.Visit("look", func(_ context.Context, e *mapper.Entity[nothing], _ nothing) error {
		mu.Lock()
		defer mu.Unlock()
		stored[pbkey.Text(e.Key)] = e.Stored()
		return nil
	})
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	mappers := []mapper.AnyMapper{put, look}
	exports := make(map[export.Format]*export.Export[nothing])
	for _, f := range everyFormat {
		exports[f] = must(export.NewEntities(string(f), bucket, &export.Options{Format: f, Files: 1}))
		mappers = append(mappers, exports[f].Mappers()...)
	}
	mappertest.Run(t, mappers, nil, func(t *testing.T, w *mappertest.Env) {
		const n = 100
		for i := range int64(n) {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("Order", i+1, nil), &order{}); err != nil {
				t.Fatal(err)
			}
		}
		odd := mapper.Query{Kind: "Odd/日本", Namespace: "north"}
		runJob(t, w, put, mapper.Query{Kind: "Order"})
		runJob(t, w, look, odd)
		for format, x := range exports {
			run, err := x.Start(t.Context(), w.Engine, odd, nothing{}, &export.StartOptions{Folder: string(format)})
			if err != nil {
				t.Fatal(err)
			}
			m, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text, err := bucket.ReadAll(t.Context(), string(format)+"/"+m.Files[0].Name)
			if err != nil {
				t.Fatal(err)
			}
			all := readEntities(t, format, text)
			if len(all) != n || len(stored) != n {
				t.Errorf("%s: %d entities of %d are read", format, len(all), len(stored))
			}
			for _, e := range all {
				want := stored[pbkey.Text(e.Key)]
				if is := atHome(e.Stored, want.GetKey().GetPartitionId()); !pbvalue.SameEntity(want, is) {
					t.Errorf("%s: %v is read, want %v", format, is, want)
				}
			}
		}
	})
}

func runJob(t *testing.T, w *mappertest.Env, m *mapper.Mapper[mapper.NoParams], q mapper.Query) {
	t.Helper()
	job, err := m.Start(t.Context(), w.Engine, q, mapper.NoParams{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
		t.Fatalf("%+v, %v", s, err)
	}
}

// atHome gives the entity's keys that have no project the given project and database.
func atHome(e *pb.Entity, home *pb.PartitionId) *pb.Entity {
	key := func(k *pb.Key) {
		if k != nil && k.GetPartitionId().GetProjectId() == "" {
			k.PartitionId = &pb.PartitionId{ProjectId: home.GetProjectId(), DatabaseId: home.GetDatabaseId(),
				NamespaceId: k.GetPartitionId().GetNamespaceId()}
		}
	}
	var value func(v *pb.Value)
	value = func(v *pb.Value) {
		key(v.GetKeyValue())
		for _, el := range v.GetArrayValue().GetValues() {
			value(el)
		}
		if inner := v.GetEntityValue(); inner != nil {
			atHome(inner, home)
		}
	}
	key(e.GetKey())
	for _, v := range e.GetProperties() {
		value(v)
	}
	return e
}
