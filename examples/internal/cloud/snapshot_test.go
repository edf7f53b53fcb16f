package cloud

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
)

type item struct {
	Group string
	N     int
}

// TestSnapshot splits a kind, and runs a job that reads it as of a past time, while other clients
// change, delete and insert entities. It runs on the embedded Datastore and on Google's Firestore
// emulator. On Google's classic emulator, which can't read the past, the job must be refused.
func TestSnapshot(t *testing.T) {
	for _, name := range Datastores {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "embedded" {
				t.Skip("left out: -short leaves Google's emulators out")
			}
			testSnapshot(t, name)
		})
	}
}

func testSnapshot(t *testing.T, name string) {
	n := testflag.Size(t, 500, 500, 1500) // ten pages or more for the four workers
	var mu sync.Mutex
	seen := make(map[string]item)
	read := mapper.Visit("read", func(_ context.Context, e *mapper.Entity[item], _ mapper.NoParams) error {
		mu.Lock()
		defer mu.Unlock()
		if had, ok := seen[e.Key.String()]; ok && had != e.Value {
			return mapper.Permanent(fmt.Errorf("it was %+v and is %+v", had, e.Value))
		}
		seen[e.Key.String()] = e.Value
		return nil
	})
	on, err := Start(t.Context(), Options{Datastore: name, Workers: 4, Mappers: []mapper.AnyMapper{read}})
	if errors.Is(err, google.ErrNotInstalled) {
		t.Skipf("left out: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close()

	rng := rand.New(rand.NewPCG(1, 0))
	want, keys := make(map[string]item), make([]*datastore.Key, n)
	items := make([]item, n)
	for i := range keys {
		keys[i], items[i] = datastore.NameKey("Item", fmt.Sprintf("%016x", rng.Uint64()), nil),
			item{Group: fmt.Sprint(i % 3), N: i}
		want[keys[i].String()] = items[i]
	}
	for i := 0; i < n; i += 500 { // as many as a commit may have
		if _, err := on.Client.PutMulti(t.Context(), keys[i:i+500], items[i:i+500]); err != nil {
			t.Fatal(err)
		}
	}
	wantSplits(t, on.Client, n)
	time.Sleep(10 * time.Millisecond)
	at := time.Now()
	time.Sleep(10 * time.Millisecond)

	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			k := keys[rng.IntN(n)]
			var err error
			switch rng.IntN(3) {
			case 0:
				_, err = on.Client.Put(ctx, k, &item{Group: "0", N: -1})
			case 1:
				err = on.Client.Delete(ctx, k)
			case 2:
				_, err = on.Client.Put(ctx, datastore.NameKey("Item", fmt.Sprintf("%016x", rng.Uint64()), nil),
					&item{Group: "0", N: -1})
			}
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	defer others.Wait()
	defer stop()
	for form, q := range map[string]mapper.Query{
		"all":         {},
		"filter":      {Filters: []mapper.Filter{mapper.Where("Group", "=", "0")}},
		"by property": {ShardBy: "N"},
	} {
		clear(seen)
		q.Kind, q.ReadTime = "Item", at
		job, err := read.Start(t.Context(), on.Engine, q, mapper.NoParams{}, &mapper.StartOptions{PageSize: 50})
		if name == "google" {
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), "classic emulator") {
				t.Errorf("%s: %v", form, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceeded {
			t.Fatalf("%s: %+v, %v", form, s, err)
		}
		wrong, expected := 0, 0
		for k, v := range want {
			if form == "filter" && v.Group != "0" {
				continue
			}
			if expected++; seen[k] != v {
				wrong++
			}
		}
		if wrong > 0 || len(seen) != expected || s.Processed != int64(expected) {
			t.Errorf("%s: %d of %d are wrong, %d seen; %+v", form, wrong, expected, len(seen), s)
		}
	}
}

// wantSplits splits the kind, reads each part with the client, as other programs would, and checks
// that all n entities are found.
func wantSplits(t *testing.T, client *datastore.Client, n int) {
	t.Helper()
	for _, q := range []mapper.Query{{Kind: "Item"}, {Kind: "Item", ShardBy: "N"}} {
		splits, err := split.Query(t.Context(), client, q, 6, nil)
		if err != nil || len(splits) != 6 {
			t.Fatalf("%+v: %d splits, %v", q, len(splits), err)
		}
		seen := make(map[string]bool)
		for i, s := range splits {
			d, err := s.Query.DatastoreQuery()
			if err != nil {
				t.Fatal(err)
			}
			keys, err := client.GetAll(t.Context(), d.KeysOnly(), nil)
			if err != nil || len(keys) == 0 || len(keys) > n/2 {
				t.Errorf("%+v: part %d has %d items, %v", q, i, len(keys), err)
			}
			for _, k := range keys {
				if seen[k.String()] {
					t.Errorf("%v is in two parts", k)
				}
				seen[k.String()] = true
			}
		}
		if len(seen) != n {
			t.Errorf("%+v: the parts have %d items, want %d", q, len(seen), n)
		}
	}
}
