package protocol_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// TestKeysChanged runs functions that change the fields of the key that they get, to make another
// key. The job must keep the entity's own key, and so process every entity. A function may also use
// one key for several writes and change it in between. Each write must have the key as at that
// time.
func TestKeysChanged(t *testing.T) {
	t.Parallel()
	type value struct {
		Key   *datastore.Key `datastore:"__key__"`
		Count int64
	}
	var visited atomic.Int64
	change := func(k *datastore.Key) *datastore.Key {
		k.Kind, k.Name = "Copy", k.Name+"~"
		return k
	}
	write := func(e *mapper.Entity[value]) {
		e.Value.Count++
		if e.Value.Key != nil {
			e.Value.Key.Name += "~"
		}
		to := change(e.Key)
		for range 3 {
			e.Put(to, &value{Count: 1})
			to.Name += "~"
		}
		visited.Add(1)
	}
	for what, m := range map[string]*mapper.Mapper[mapper.NoParams]{
		"Update": mapper.Update("m", func(_ context.Context, e *mapper.Entity[value], _ mapper.NoParams) error {
			write(e)
			return nil
		}),
		"UpdateReading": mapper.UpdateReading("m", func(e *mapper.Entity[value], _ mapper.NoParams) []*datastore.Key {
			return []*datastore.Key{change(e.Key)}
		}, func(ctx context.Context, e *mapper.Entity[value], _ mapper.NoParams) error {
			from := *e.Key
			if err := e.Get(ctx, change(&from), new(value)); err == nil {
				return fmt.Errorf("%v exists", &from)
			}
			from.Name = "another"
			write(e)
			return nil
		}),
		"UpdateBatches": mapper.UpdateBatches("m", 3,
			func(_ context.Context, batch []*mapper.Entity[value], _ mapper.NoParams) error {
				for _, e := range batch {
					write(e)
				}
				return nil
			}),
		"Visit": mapper.Visit("m", func(_ context.Context, e *mapper.Entity[value], _ mapper.NoParams) error {
			change(e.Key)
			visited.Add(1)
			return nil
		}),
		"VisitPages": mapper.VisitPages("m",
			func(_ context.Context, e *mapper.Entity[value], _ mapper.NoParams) (int, error) {
				change(e.Key)
				visited.Add(1)
				return 1, nil
			}, func(_ context.Context, p *mapper.Page[int], _ mapper.NoParams) error {
				key := datastore.NameKey("Copy", p.UniqueName(), nil)
				for range 3 * len(p.Records) {
					p.Put(key, &value{Count: 1})
					key.Name += "~"
				}
				return nil
			}),
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, m)
			var keys []*datastore.Key
			for i := range 60 {
				keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("%03d", i), nil),
					datastore.NameKey("Account", fmt.Sprintf("%03d!", i), nil))
			}
			_, err := w.client.PutMulti(t.Context(), keys, make([]value, len(keys)))
			w.must(err)
			visited.Store(0)
			s := over(w, m, &mapper.StartOptions{PageSize: 5})
			if s.State != mapper.StateSucceeded || s.Processed != int64(len(keys)) || visited.Load() != s.Processed {
				t.Errorf("%s: %s, %d processed, and %d visited, want %d: %s", what, s.State, s.Processed,
					visited.Load(), len(keys), s.Error)
			}
			changes := what != "Visit" && what != "VisitPages"
			for _, key := range keys {
				var got value
				w.must(w.client.Get(t.Context(), key, &got))
				if changes != (got.Count == 1) {
					t.Errorf("%s: %v has the count %d", what, key, got.Count)
				}
			}
			copies, err := w.client.Count(t.Context(), datastore.NewQuery("Copy"))
			w.must(err)
			if what != "Visit" && copies != 3*len(keys) {
				t.Errorf("%s: %d copies, want %d", what, copies, 3*len(keys))
			}
			if n, err := w.client.Count(t.Context(), datastore.NewQuery("Account")); err != nil || n != len(keys) {
				t.Errorf("%s: %d accounts, %v", what, n, err)
			}
		})
	}
}
