package prebuilt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// TestLaws runs prebuilt mappers over random entities with odd names and values. A property that is
// renamed and renamed back, set or dropped leaves all others as stored, and a copy equals its
// entity.
func TestLaws(t *testing.T) {
	seed := testflag.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	const n = 60
	type nothing = mapper.NoParams
	random := mapper.Update("random", func(_ context.Context, e *mapper.Entity[nothing], _ nothing) error {
		e.PutStored(datastore.IDKey("Odd", e.Key.ID, nil), anyentity.New(rng, e.Stored().Key, false))
		return nil
	})
	var mu sync.Mutex
	seen := make(map[string]*pb.Entity)
	look := mapper.Visit("look", func(_ context.Context, e *mapper.Entity[nothing], _ nothing) error {
		mu.Lock()
		defer mu.Unlock()
		seen[e.Key.String()] = e.Stored()
		return nil
	})
	mappertest.Run(t, append(prebuilt.Mappers(), random, look), nil, func(t *testing.T, w *mappertest.Env) {
		for i := range int64(n) {
			key := datastore.IDKey("Mould", i+1, nil)
			if _, err := w.Client.Put(t.Context(), key, new(datastore.PropertyList)); err != nil {
				t.Fatal(err)
			}
		}
		job := func(name, kind string, params any) *mapper.Status {
			t.Helper()
			text, err := json.Marshal(params)
			if err != nil {
				t.Fatal(err)
			}
			j, err := w.Engine.StartByName(t.Context(), name, mapper.Query{Kind: kind}, text,
				&mapper.StartOptions{FailureLimit: -1})
			if err != nil {
				t.Fatal(err)
			}
			s, err := j.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		now := func(kind string) map[string]*pb.Entity {
			clear(seen)
			job("look", kind, nothing{})
			all := make(map[string]*pb.Entity)
			for key, e := range seen {
				all[key] = pbvalue.Clone(e)
			}
			return all
		}
		same := func(what string, before, after map[string]*pb.Entity, name string) {
			t.Helper()
			for key, e := range before {
				e, is := pbvalue.Clone(e), after[key]
				if name != "" && !value.Leads(e, name) {
					delete(e.Properties, name)
					is = pbvalue.Clone(is)
					delete(is.Properties, name)
				}
				if !pbvalue.SameEntity(e, is) {
					t.Fatalf("seed %d: %s changes %s from\n%v\nto\n%v", seed, what, key, e, is)
				}
			}
		}
		job("random", "Mould", nothing{})
		first := now("Odd")
		if len(first) != n {
			t.Fatalf("%d entities", len(first))
		}
		for _, name := range anyentity.Names {
			before := now("Odd")
			job("rename", "Odd", map[string]string{"from": name, "to": "new"})
			job("rename", "Odd", map[string]string{"from": "new", "to": name})
			same(fmt.Sprintf("renaming %q", name), before, now("Odd"), "")
		}
		same("everything", first, now("Odd"), "")
		job("copy", "Odd", map[string]string{"kind": "Copy"})
		copies := make(map[string]*pb.Entity)
		for key, e := range now("Copy") {
			e.Key.Path[0].Kind = "Odd"
			copies["/Odd"+key[len("/Copy"):]] = e
		}
		same("a copy", first, copies, "")
		for i, name := range anyentity.Names {
			before := now("Odd")
			if i%2 == 0 {
				job("drop", "Odd", map[string][]string{"properties": {name}})
			} else {
				job("set", "Odd", map[string]any{"property": name, "value": i})
			}
			same(fmt.Sprintf("changing %q", name), before, now("Odd"), name)
		}
	})
}
