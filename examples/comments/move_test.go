package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// inWorld runs a test in virtual time, on a store whose comments can be moved by a job. The store's
// clock is 30 years ahead of virtual time, which starts in 2000, because IDs start in 2020.
func inWorld(t *testing.T, o *mappertest.Options, test func(t *testing.T, w *mappertest.Env, s *Store)) {
	t.Helper()
	mappertest.Run(t, []mapper.AnyMapper{reshard, count}, o, func(t *testing.T, w *mappertest.Env) {
		s := openStore(t, w.NewClient)
		s.router.now = func() time.Time { return time.Now().AddDate(30, 0, 0) }
		test(t, w, s)
	})
}

// TestReshardUnderFaults moves comments to more shards and back, while clients insert, edit, delete
// and read them. Calls fail, and deliveries come twice or to processes that crash.
func TestReshardUnderFaults(t *testing.T) {
	first := testflag.Seed(t)
	for i := range uint64(testflag.Size(t, 1, 1, 3)) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) {
			inWorld(t, &mappertest.Options{Seed: first + i}, func(t *testing.T, w *mappertest.Env, s *Store) {
				l := newLoad(s)
				l.refused = func(err error) bool { // the error of an attempt that has given up
					return !errors.Is(err, errDiffers) && again(err)
				}
				if err := l.fill(t.Context(), 800); err != nil {
					t.Fatal(err)
				}
				w.ResumeFaults()
				for _, shards := range []int{32, 20} {
					underLoad(t, w, l, shards)
				}
				w.PauseFaults()
				if _, err := l.check(t.Context()); err != nil {
					t.Error(err)
				}
				r := result{From: 32, To: 20}
				if err := r.look(t.Context(), w.Client, w.Engine); err != nil {
					t.Error(err)
				}
				if l.inserted == 0 || l.edited == 0 || l.removed == 0 || l.read == 0 {
					t.Errorf("%d inserts, %d edits, %d deletions and %d reads", l.inserted, l.edited, l.removed, l.read)
				}
			})
		})
	}
}

// underLoad moves the comments to a number of shards while clients use them. It sometimes kills the
// process that moves them, and lets another one continue.
func underLoad(t *testing.T, w *mappertest.Env, l *load, shards int) {
	moved := make(chan struct{})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := l.work(t.Context(), moved); err != nil {
				t.Error(err)
			}
		})
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := l.store.Reshard(ctx, w.Engine, shards)
		cancel()
		if err == nil {
			close(moved)
			group.Wait()
			return
		}
	}
	close(moved)
	group.Wait()
	t.Fatalf("the comments are not in %d shards after a hundred attempts", shards)
}

// TestMoved reads, edits and deletes comments by their IDs alone, after several moves. An ID has
// the shard from the time when it was drawn, and not the present one.
func TestMoved(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *mappertest.Env, s *Store) {
		var keys []*datastore.Key
		insert := func() {
			for block := range int64(64) {
				key, err := s.Put(t.Context(), plain(0), &Comment{Order: block * ordersAShard, Text: fmt.Sprint(block)})
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, key)
			}
		}
		insert()
		for _, shards := range []int{32, 1, 128, 20, 7} {
			if err := s.Reshard(t.Context(), w.Engine, shards); err != nil {
				t.Fatal(err)
			}
			insert()
			all := make([]Comment, len(keys))
			if err := s.GetMulti(t.Context(), keys, all); err != nil {
				t.Fatalf("in %d shards: %v", shards, err)
			}
			for i := range all {
				if *all[i].Key != *keys[i] || all[i].Order != int64(i%64)*ordersAShard {
					t.Fatalf("in %d shards, %v is %+v", shards, keys[i], all[i])
				}
				all[i].Edits++
			}
			if _, err := s.PutMulti(t.Context(), keys, all); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Count(t.Context(), datastore.NewQuery(plainKind)); n != len(keys) || err != nil {
				t.Fatalf("in %d shards: %d comments, want %d, %v", shards, n, len(keys), err)
			}
		}
		if err := s.DeleteMulti(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		for _, kind := range kindsOf(7) {
			if n, err := w.Client.Count(t.Context(), datastore.NewQuery(kind)); n != 0 || err != nil {
				t.Errorf("%s has %d comments, %v", kind, n, err)
			}
		}
	})
}

// TestOnTheWay stops a move in the middle. Each comment must be readable, editable and deletable in
// its old or new shard. Afterwards it must be in exactly one shard. A query that is read page by
// page must continue while comments are moved.
func TestOnTheWay(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *mappertest.Env, s *Store) {
		var keys []*datastore.Key
		for i := range 200 {
			key, err := s.Put(t.Context(), plain(0), &Comment{Order: someOrder(i), Status: statuses[i%3],
				Created: someTime.Add(time.Duration(i/7) * time.Second)})
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		var want, got []int64
		byTime := datastore.NewQuery(plainKind).Order("-Created")
		all, err := s.GetAll(t.Context(), byTime.KeysOnly(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range all {
			want = append(want, key.ID)
		}
		page := byTime.Limit(20)
		for i := 0; ; i++ {
			switch i {
			case 1: // like a move that has stopped
				if _, err := begin(t.Context(), w.Client, 32); err != nil {
					t.Fatal(err)
				}
			case 3, 4, 5: // writing a comment moves it, too
				some := keys[(i-3)*50:][:50]
				list := make([]Comment, len(some))
				if err := s.GetMulti(t.Context(), some, list); err != nil {
					t.Fatal(err)
				}
				if _, err := s.PutMulti(t.Context(), some, list); err != nil {
					t.Fatal(err)
				}
			case 7:
				if err := s.Reshard(t.Context(), w.Engine, 32); err != nil {
					t.Fatal(err)
				}
			}
			ids, c := readPage(t, s, page)
			got = append(got, ids...)
			if page = page.Start(c); len(ids) < 20 {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("page by page, over a move:\ngot  %v\nwant %v", got, want)
		}
		if stored := countIn(t, w.Client, 20) + countIn(t, w.Client, 32); stored != len(keys) {
			t.Errorf("%d comments are stored, want %d: one in two shards is doubled", stored, len(keys))
		}
	})
}

// readPage returns the IDs of one page of a query, and the cursor after it.
func readPage(t *testing.T, s *Store, page *datastore.Query) (ids []int64, c datastore.Cursor) {
	t.Helper()
	for it := s.Run(t.Context(), page); ; {
		key, err := it.Next(nil)
		if errors.Is(err, iterator.Done) {
			if c, err = it.Cursor(); err == nil {
				return ids, c
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, key.ID)
	}
}

// countIn counts the comments that are stored in the kinds for a number of shards.
func countIn(t *testing.T, client *datastore.Client, shards int) (stored int) {
	t.Helper()
	for _, kind := range kindsOf(shards) {
		n, err := client.Count(t.Context(), datastore.NewQuery(kind))
		if err != nil {
			t.Fatal(err)
		}
		stored += n
	}
	return stored
}

// TestLateWriter stops a write between its reads and its commit, while all comments are moved. The
// commit must be refused. The store must retry it by the new layout.
func TestLateWriter(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *mappertest.Env, s *Store) {
		order := int64(25 * ordersAShard) // in shard 5 of 20, and in shard 25 of 32
		key, err := s.Put(t.Context(), plain(0), &Comment{Order: order, Text: "first"})
		if err != nil {
			t.Fatal(err)
		}
		attempts := 0
		_, err = s.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
			attempts++
			c := new(Comment)
			if err := tx.Get(key, c); err != nil {
				return err
			}
			if attempts == 1 {
				if err := s.Reshard(t.Context(), w.Engine, 32); err != nil {
					return err
				}
			}
			c.Text = "late"
			if _, err := tx.Put(key, c); err != nil {
				return err
			}
			_, err := tx.Put(plain(0), &Comment{Order: order, Text: "new"})
			return err
		})
		if err != nil || attempts < 2 {
			t.Fatalf("%d attempts, %v: the first has seen the old layout", attempts, err)
		}
		var all []Comment
		if _, err := s.GetAll(t.Context(), datastore.NewQuery(plainKind).FilterField("Order", "=",
			order).Order("Created"),
			&all); err != nil {
			t.Fatal(err)
		}
		if len(all) != 2 || all[0].Text != "late" || all[1].Text != "new" {
			t.Errorf("%+v", all)
		}
		if n, err := w.Client.Count(t.Context(), datastore.NewQuery(kindOf(5, 20))); n != 0 || err != nil {
			t.Errorf("%d comments are in the old shard, %v", n, err)
		}
	})
}

// TestIdle waits for several days after comments were written. Then they must be readable and
// unchanged, from all shards and by their IDs.
func TestIdle(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *mappertest.Env, s *Store) {
		key, err := s.Put(t.Context(), plain(0), &Comment{Order: 7})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(72 * time.Hour)
		if err := s.Get(t.Context(), key, new(Comment)); err != nil {
			t.Error(err)
		}
		if n, err := s.Count(t.Context(), datastore.NewQuery(plainKind)); n != 1 || err != nil {
			t.Errorf("%d comments, %v", n, err)
		}
	})
}
