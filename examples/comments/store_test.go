package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// A watch records which kinds are queried.
type watch struct {
	mu    sync.Mutex
	kinds map[string]bool
	calls int
}

func (w *watch) see(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	w.mu.Lock()
	w.calls++
	switch req := req.(type) {
	case *pb.RunQueryRequest:
		w.kinds[req.GetQuery().Kind[0].Name] = true
	case *pb.LookupRequest:
		for _, key := range req.Keys {
			if isShard(key.Path[0].Kind) {
				w.kinds[key.Path[0].Kind] = true
			}
		}
	}
	w.mu.Unlock()
	return invoke(ctx, method, req, reply, cc, opts...)
}

// asked returns how many kinds were queried since the last call of asked.
func (w *watch) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.kinds)
	w.kinds = make(map[string]bool)
	return n
}

// TestRouting reads comments in every way: by ID, by one order, by several orders, by both, and by
// other conditions. The results must be right, and the store must query as few shards as possible.
func TestRouting(t *testing.T) {
	w := &watch{kinds: make(map[string]bool)}
	s := newStore(t, 2, w.see)
	var keys []*datastore.Key
	for block := range int64(40) { // two blocks of orders in each shard
		key, err := s.Put(t.Context(), plain(0), &Comment{Order: block * ordersAShard, Status: statuses[block%3]})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if n, err := s.router.databases[1].client.Count(t.Context(), datastore.NewQuery(plainKind)); n != 0 || err != nil {
		t.Errorf("%d comments, %v, are stored under the plain kind: each is in its shard, once", n, err)
	}
	w.asked()
	table := datastore.NewQuery(plainKind)
	order := func(block int64) int64 { return block * ordersAShard }
	either := datastore.OrFilter{Filters: []datastore.EntityFilter{
		datastore.PropertyFilter{FieldName: "Order", Operator: "=", Value: order(1)},
		datastore.PropertyFilter{FieldName: "__key__", Operator: "=", Value: keys[2]}}}
	for name, c := range map[string]struct {
		query         *datastore.Query
		found, shards int
	}{
		"an order":       {table.FilterField("Order", "=", order(3)), 1, 1},
		"several orders": {table.FilterField("Order", "in", []any{order(3), order(4), order(23)}), 3, 2},
		"an ID":          {table.FilterField("__key__", "=", keys[3]), 1, 1},
		"several IDs":    {table.FilterField("__key__", "in", []any{keys[3], keys[4], keys[23]}), 3, 2},
		"both": {table.FilterField("Order", "in", []any{order(3), order(4)}).FilterField("__key__",
			"in", []any{keys[3], keys[5]}), 1, 1},
		"both, of which none is": {table.FilterField("Order", "=", order(3)).FilterField("__key__", "=", keys[4]), 0,
			1},
		"an order or an ID":    {table.FilterEntity(either), 2, 2},
		"below a comment":      {table.Ancestor(keys[7]), 1, 1},
		"below something else": {table.Ancestor(datastore.IDKey("Shop", 1, nil)), 0, 1},
		"an order, and another": {table.FilterField("Order", "=", order(3)).FilterField("Order", "=", order(4)), 0,
			1},
		"an order that can't be":     {table.FilterField("Order", "=", -5), 0, 1},
		"an order that is no number": {table.FilterField("Order", "=", "3"), 0, 1},
		"an order and a free condition": {table.FilterField("Order", "=", order(3)).FilterField("Status", "=",
			statuses[0]),
			1, 1},
		"orders from one on": {table.FilterField("Order", ">=", order(38)), 2, 20},
		"a free condition":   {table.FilterField("Status", "=", statuses[0]), 14, 20},
		"a free order":       {table.Order("-Status"), 40, 20},
		"all":                {table, 40, 20},
	} {
		found, err := s.GetAll(t.Context(), c.query.KeysOnly(), nil)
		if asked := w.asked(); err != nil || len(found) != c.found || asked != c.shards {
			t.Errorf("%s: %d comments of %d shards, %v; want %d of %d", name, len(found), asked, err, c.found, c.shards)
		}
	}
	all := make([]Comment, 3)
	if err := s.GetMulti(t.Context(), []*datastore.Key{keys[3], keys[4], keys[23]}, all); err != nil ||
		w.asked() != 2 ||
		all[2].Order != order(23) {
		t.Errorf("by IDs alone: %+v, %v", all, err)
	}
	if _, err := s.Put(t.Context(), keys[3], &all[0]); err != nil || w.asked() != 1 {
		t.Errorf("an edit: %v, or it asks more than the comment's shard", err)
	}
	if err := s.Delete(t.Context(), keys[3]); err != nil || w.asked() != 1 {
		t.Errorf("a deletion: %v, or it asks more than the comment's shard", err)
	}
}

// TestIndexes checks that index.yaml is complete and has no superfluous index. The emulator must
// serve the program's queries. For other queries, the error must name the index and the kinds that
// need it.
func TestIndexes(t *testing.T) {
	file, err := os.ReadFile("index.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, indexYAML(20, 32)) {
		t.Error("index.yaml is not what -indexes prints: run go run ./examples/comments -indexes > " +
			"examples/comments/index.yaml")
	}
	table := datastore.NewQuery(plainKind)
	served := map[string]*datastore.Query{
		"-__key__":              table.Order("-__key__"),
		"Order Created":         table.FilterField("Order", "=", 7).Order("Created"),
		"Order -Created":        table.FilterField("Order", "=", 7).Order("-Created"),
		"Status Created":        table.FilterField("Status", "=", "paid").Order("Created"),
		"Status -Created":       table.FilterField("Status", "=", "paid").Order("-Created"),
		"Author Created":        table.FilterField("Author", "=", "ann").Order("Created"),
		"Author -Created":       table.FilterField("Author", "=", "ann").Order("-Created"),
		"Status Author Created": table.Order("Status").Order("Author").Order("Created"),
	}
	open := func(file []byte) *Store {
		return openStore(t, opener(t, emulator.ForTest(t, &emulator.Options{Indexes: file})))
	}
	s := open(file)
	for name, q := range served {
		if _, err := s.GetAll(t.Context(), q.KeysOnly(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.GetAll(t.Context(), table.FilterField("Order", "=", 7).FilterField("Status", "=",
		"paid").Order("-Created"), new([]Comment)); err != nil {
		t.Errorf("two indexes together: %v", err)
	}
	_, err = s.GetAll(t.Context(), table.Order("Text").Order("Created"), new([]Comment))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "name: Text") ||
		!strings.Contains(err.Error(), "Comment20_00 to Comment20_19") {
		t.Errorf("an index that is missing: %v", err)
	}
	whole := indexed
	defer func() { indexed = whole }()
	for i, index := range whole {
		indexed = slices.Delete(slices.Clone(whole), i, i+1)
		without := open(indexYAML(20, 32))
		if _, err := without.GetAll(t.Context(), served[strings.Join(index, " ")].KeysOnly(),
			nil); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("without the index %v: %v, want FailedPrecondition", index, err)
		}
	}
}

// TestTimes checks the times Created and Updated that the store sets. If a caller gives a comment's
// Created, the ID must have this time. An edit must not change Created.
func TestTimes(t *testing.T) {
	s := newTimed(t)
	key := s.put(t, plain(0), &Comment{Order: 7, Text: "a"})
	c := s.get(t, key)
	if want := s.now.Truncate(time.Millisecond); !c.Created.Equal(want) || !c.Updated.Equal(want) ||
		!ID(key.ID).Time().Equal(want) {
		t.Errorf("%+v, ID of %v; want all of %v", c, ID(key.ID).Time(), want)
	}
	// An edit keeps Created and the ID, whether the caller gives Created or not.
	created := c.Created
	for i, c := range []Comment{c, {Order: 7, Text: "b"}} {
		s.now = s.now.Add(time.Hour)
		s.put(t, key, &c)
		if c = s.get(t, key); !c.Created.Equal(created) || !c.Updated.Equal(s.now) {
			t.Errorf("edit %d: %+v, want it created at %v and updated at %v", i, c, created, s.now)
		}
	}
	if _, err := s.Put(t.Context(), key, &Comment{Order: 7, Created: created.Add(time.Second)}); err == nil ||
		!strings.Contains(err.Error(), "it was created at 2026-03-04") {
		t.Errorf("a comment that was created at another time: %v", err)
	}
}

// A timed is a store whose clock is set by the test.
type timed struct {
	*Store
	now time.Time
}

func newTimed(t *testing.T) *timed {
	s := &timed{newStore(t, 2), time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)}
	s.router.now = func() time.Time { return s.now }
	return s
}

func (s *timed) get(t *testing.T, key *datastore.Key) (c Comment) {
	t.Helper()
	if err := s.Get(t.Context(), key, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *timed) put(t *testing.T, key *datastore.Key, c *Comment) *datastore.Key {
	t.Helper()
	key, err := s.Put(t.Context(), key, c)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestTimesOfTheCaller writes comments whose times the caller gives.
func TestTimesOfTheCaller(t *testing.T) {
	s := newTimed(t)
	given := time.Date(2022, 2, 2, 2, 2, 2, 345_678_000, time.UTC)
	keys := make([]*datastore.Key, 500)
	all := make([]Comment, len(keys))
	for i := range keys {
		keys[i], all[i] = plain(0), Comment{Order: 7, Created: given, Updated: given.Add(time.Minute)}
	}
	keys, err := s.PutMulti(t.Context(), keys, all)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int64]bool)
	for _, key := range keys {
		seen[key.ID] = true
		if id := ID(key.ID); !id.Time().Equal(given.Truncate(time.Millisecond)) || id.Logical() != 0 {
			t.Errorf("the ID is of %v in shard %d, want %v in 0", id.Time(), id.Logical(), given)
		}
	}
	if len(seen) != len(keys) {
		t.Errorf("%d comments of one time have %d IDs", len(keys), len(seen))
	}
	if c := s.get(t, keys[0]); !c.Created.Equal(given) || !c.Updated.Equal(given.Add(time.Minute)) {
		t.Errorf("%+v, want the times that were given", c)
	}
	// The caller's Updated must not be later than now.
	late := s.put(t, plain(0), &Comment{Order: 7, Created: given, Updated: s.now.Add(time.Hour)})
	if c := s.get(t, late); !c.Updated.Equal(s.now) {
		t.Errorf("%+v, want it to be updated at %v", c, s.now)
	}
}

// TestTimesLeftOut writes comments as a Go type without the fields Created and Updated, also in a
// transaction. The stored times must stay.
func TestTimesLeftOut(t *testing.T) {
	s := newTimed(t)
	type short struct {
		Order   int64
		Created time.Time `datastore:",omitempty"`
		Updated time.Time `datastore:",omitempty"`
	}
	bare, err := s.Put(t.Context(), plain(0), &short{Order: 7})
	if err != nil {
		t.Fatal(err)
	}
	if c := s.get(t, bare); !c.Created.Equal(ID(bare.ID).Time()) || !c.Updated.Equal(c.Created) {
		t.Errorf("%+v, want the time of the ID", c)
	}
	s.now = s.now.Add(time.Hour)
	if _, err := s.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
		_, err := tx.Put(bare, &struct{ Order int64 }{7})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if c := s.get(t, bare); !c.Created.Equal(ID(bare.ID).Time()) || !c.Updated.Equal(s.now) {
		t.Errorf("%+v, want the time of the ID, and now", c)
	}
	if n, err := s.Count(t.Context(), datastore.NewQuery(plainKind).FilterField("Updated", "=", s.now)); n != 1 ||
		err != nil {
		t.Errorf("%d comments, %v, want the one that was updated now", n, err)
	}
}

// TestTimesOfKeys puts comments under keys that the caller has made. Created must be the time in
// the ID.
func TestTimesOfKeys(t *testing.T) {
	s := newTimed(t)
	given := time.Date(2022, 2, 2, 3, 2, 2, 345_678_000, time.UTC)
	own := plain(newID(given.Sub(Epoch).Milliseconds(), 0, 0, 5))
	if _, err := s.Put(t.Context(), own, &Comment{Order: 7, Created: given.Add(time.Second)}); !errors.Is(err,
		datastore.ErrInvalidKey) || !strings.Contains(err.Error(), "its ID says that it was created at 2022-02-02") {
		t.Errorf("a time that differs from the ID's: %v", err)
	}
	if c := s.get(t, s.put(t, own, &Comment{Order: 7, Created: given})); !c.Created.Equal(given) {
		t.Errorf("%+v, want the time that was given", c)
	}
	// An ID can't have these times.
	for _, at := range []time.Time{Epoch.Add(-time.Hour), Epoch, time.Date(2160, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if _, err := s.Put(t.Context(), plain(0), &Comment{Order: 7, Created: at}); !errors.Is(err,
			datastore.ErrInvalidKey) || !strings.Contains(err.Error(), "no IDs of") {
			t.Errorf("created at %v: %v", at, err)
		}
	}
}

// TestFullTime draws all IDs of one shard and millisecond. Further inserts with that time must be
// refused, also in another process.
func TestFullTime(t *testing.T) {
	e := emulator.ForTest(t, nil)
	stores := []*Store{openStore(t, opener(t, e)), openStore(t, opener(t, e))}
	seen := make(map[int64]bool)
	put := func(s *Store, n int) error {
		keys := make([]*datastore.Key, n)
		all := make([]Comment, n)
		for i := range keys {
			keys[i], all[i] = plain(0), Comment{Order: 7, Created: someTime}
		}
		keys, err := s.PutMulti(t.Context(), keys, all)
		for _, key := range keys {
			seen[key.ID] = true
		}
		return err
	}
	for i := range 32 {
		if err := put(stores[i%2], 64); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 2048 {
		t.Errorf("%d IDs, want 2048: 11 bits", len(seen))
	}
	if err := put(stores[0], 1); err == nil || !strings.Contains(err.Error(),
		"all 2048 IDs of logical shard 0 at 2024-01-02T03:04:05.000006Z are taken") {
		t.Errorf("one more: %v", err)
	}
}

// TestTwoProcesses lets two processes insert into one shard although their generators draw the same
// IDs.
func TestTwoProcesses(t *testing.T) {
	e := emulator.ForTest(t, nil)
	frozen := time.Now()
	const each = 200
	var mu sync.Mutex
	seen := make(map[int64]bool)
	var group sync.WaitGroup
	collisions := 0
	for range 2 {
		s := openStore(t, opener(t, e))
		g, err := s.router.generator(0, shardOf(7, 20))
		if err != nil {
			t.Fatal(err)
		}
		g.now = func() time.Time { return frozen } // so that both processes draw the same IDs
		group.Go(func() {
			for range each {
				key, err := s.Put(t.Context(), plain(0), &Comment{Order: 7, Text: "hello"})
				mu.Lock()
				if err != nil || seen[key.ID] {
					t.Errorf("%v, %v", key, err)
				} else {
					seen[key.ID] = true
				}
				mu.Unlock()
			}
			mu.Lock()
			collisions += int(g.next) - each
			mu.Unlock()
		})
	}
	group.Wait()
	n, err := openStore(t, opener(t, e)).Count(t.Context(), datastore.NewQuery(plainKind).FilterField("Order", "=", 7))
	if err != nil || n != 2*each {
		t.Errorf("%d comments, %v, want %d", n, err, 2*each)
	}
	if collisions == 0 {
		t.Error("the two have never drawn the same ID")
	}
}

// TestLostAnswer loses the answer to a write. Before the store's retry, others edit the comment.
// The write must take effect once, and the others' edits must stay.
func TestLostAnswer(t *testing.T) {
	e := emulator.ForTest(t, nil)
	other := openStore(t, opener(t, e))
	for name, write := range map[string]func(s *Store, key *datastore.Key) (*datastore.Key, error){
		"insert": func(s *Store, _ *datastore.Key) (*datastore.Key, error) {
			return s.Put(t.Context(), plain(0), &Comment{Order: 7, Text: "mine"})
		},
		"insert several": func(s *Store, _ *datastore.Key) (*datastore.Key, error) {
			keys, err := s.PutMulti(t.Context(), []*datastore.Key{plain(0), plain(0)},
				[]Comment{{Order: 7, Text: "mine"}, {Order: 8}})
			if err != nil {
				return nil, err
			}
			return keys[0], err
		},
		"put": func(s *Store, key *datastore.Key) (*datastore.Key, error) {
			return s.Put(t.Context(), key, &Comment{Order: 7, Text: "mine"})
		},
		"update": func(s *Store, key *datastore.Key) (*datastore.Key, error) {
			keys, err := s.Mutate(t.Context(), datastore.NewUpdate(key, &Comment{Order: 7, Text: "mine"}))
			if err != nil {
				return nil, err
			}
			return keys[0], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := other.Put(t.Context(), plain(0), &Comment{Order: 7, Text: "before"})
			if err != nil {
				t.Fatal(err)
			}
			before, err := other.Count(t.Context(), datastore.NewQuery(plainKind))
			if err != nil {
				t.Fatal(err)
			}
			var armed atomic.Bool
			lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				c, ok := req.(*pb.CommitRequest)
				if !ok || err != nil || len(c.Mutations) == 0 || !armed.CompareAndSwap(true, false) {
					return err
				}
				editMine(ctx, t, other)
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			s := openStore(t, opener(t, e, lose))
			armed.Store(true)
			key, err = write(s, key)
			if err != nil || armed.Load() {
				t.Fatal(err, armed.Load())
			}
			c := new(Comment)
			if err := other.Get(t.Context(), key, c); err != nil || c.Text != "theirs" || c.Edits != 3 {
				t.Errorf("%+v, %v; want the comment as others have edited it last", c, err)
			}
			after, err := other.Count(t.Context(), datastore.NewQuery(plainKind))
			if want := before + map[string]int{"insert": 1, "insert several": 2}[name]; err != nil || after != want {
				t.Errorf("%d comments, %v, want %d", after, err, want)
			}
			if err := other.DeleteMulti(t.Context(), []*datastore.Key{key}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// editMine edits three times a comment that another store has put, and whose answer was lost.
func editMine(ctx context.Context, t *testing.T, other *Store) {
	t.Helper()
	var mine []Comment
	if _, err := other.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("Order", "=", 7), &mine); err != nil {
		t.Error(err)
	}
	for _, c := range mine {
		if c.Text != "mine" {
			continue
		}
		for edits := range int64(3) {
			if _, err := other.Put(ctx, c.Key,
				&Comment{Order: 7, Text: "theirs", Edits: c.Edits + edits + 1}); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestErrors compares the errors of the store, and their positions, with the errors of Datastore
// for a single kind.
func TestErrors(t *testing.T) {
	s, client := newStore(t, 2), plainClient(t)
	key, err := s.Put(t.Context(), plain(0), &Comment{Order: 7})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := s.Put(t.Context(), plain(0), &Comment{Order: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), key, &Comment{Order: 7}); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, do := range map[string]func(v Verbs) error{
		"get": func(v Verbs) error { return v.Get(ctx, gone, new(Comment)) },
		"get several": func(v Verbs) error {
			return v.GetMulti(ctx, []*datastore.Key{key, gone, gone, key}, make([]Comment, 4))
		},
		"get nothing":    func(v Verbs) error { return v.GetMulti(ctx, nil, []Comment{}) },
		"get a new one":  func(v Verbs) error { return v.Get(ctx, plain(0), new(Comment)) },
		"get into less":  func(v Verbs) error { return v.Get(ctx, key, &struct{ Order int64 }{}) },
		"delete":         func(v Verbs) error { return v.Delete(ctx, gone) },
		"delete several": func(v Verbs) error { return v.DeleteMulti(ctx, []*datastore.Key{gone, gone}) },
		"insert again": func(v Verbs) error {
			_, err := v.Mutate(ctx,
				datastore.NewInsert(key, &Comment{Order: 7}))
			return err
		},
		"update none": func(v Verbs) error {
			_, err := v.Mutate(ctx, datastore.NewUpdate(gone, &Comment{Order: 7}))
			return err
		},
		"the same twice": func(v Verbs) error {
			_, err := v.PutMulti(ctx, []*datastore.Key{key, key}, make([]Comment, 2))
			return err
		},
		"a wrong length": func(v Verbs) error {
			_, err := v.PutMulti(ctx, []*datastore.Key{key},
				make([]Comment, 2))
			return err
		},
		"what is no type": func(v Verbs) error { _, err := v.Put(ctx, key, 5); return err },
		"a wrong query": func(v Verbs) error {
			_, err := v.GetAll(ctx, datastore.NewQuery(plainKind).Limit(-2).FilterField("", "=", 1), nil)
			return err
		},
		"a wrong projection": func(v Verbs) error {
			_, err := v.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("Order", "=", 7).Project("Order"),
				new([]Comment))
			return err
		},
		"a transaction that gives up": func(v Verbs) error {
			_, err := v.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				return tx.Get(gone, new(Comment))
			})
			return err
		},
		"a transaction that only reads": func(v Verbs) error {
			_, err := v.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				_, err := tx.Put(key, &Comment{Order: 7})
				return err
			}, datastore.ReadOnly)
			return err
		},
	} {
		got, want := do(s), do(client)
		gotAll, gotMany := got.(datastore.MultiError)    //nolint:errorlint // without unwrapping
		wantAll, wantMany := want.(datastore.MultiError) //nolint:errorlint // likewise
		same := (got == nil) == (want == nil) && status.Code(got) == status.Code(want) && gotMany == wantMany &&
			len(gotAll) == len(wantAll)
		for _, known := range []error{datastore.ErrNoSuchEntity, datastore.ErrInvalidKey,
			datastore.ErrInvalidEntityType} {
			same = same && (got == known) == (want == known) //nolint:errorlint // likewise
			for i := range wantAll {
				same = same && (gotAll[i] == known) == (wantAll[i] == known) //nolint:errorlint // likewise
			}
		}
		if !same {
			t.Errorf("%s: %T %v, want %T %v", name, got, got, want, want)
		}
	}
}

// TestAbsent reads, queries and deletes keys that no comment can have. The result must be the same
// as for comments that do not exist. The other keys of the call must not be affected.
func TestAbsent(t *testing.T) {
	s, client := newStore(t, 2), plainClient(t)
	ctx := t.Context()
	foreign := plain(newID(1, 1, 1, 5))
	foreign.Namespace = "x"
	for name, bad := range map[string]*datastore.Key{
		"a name":             datastore.NameKey(plainKind, "x", nil),
		"a parent":           datastore.IDKey(plainKind, 5, datastore.IDKey("Order", 7, nil)),
		"a comment below":    datastore.IDKey(plainKind, 5, plain(7)),
		"a namespace":        foreign,
		"a negative ID":      plain(-5),
		"no such database":   plain(newID(1, 5, 1, 0)),
		"the wrong database": plain(newID(1, 0, 1, 0)),
		"no such shard":      plain(newID(1, 1, 21, 0)),
		"another kind":       datastore.IDKey("Other", 5, nil),
		"a kind just after":  datastore.IDKey("Comment1", 5, nil),
		"a kind of a shard":  datastore.IDKey(kindOf(1, 20), 5, nil),
	} {
		good, err := s.Put(ctx, plain(0), &Comment{Order: ordersAShard, Text: "good"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(ctx, good, &Comment{Order: ordersAShard, Text: "good"}); err != nil {
			t.Fatal(err)
		}
		do := func(v Verbs) (notes []string) {
			note := func(what string, values ...any) { notes = append(notes, fmt.Sprint(what, values)) }
			err := v.Get(ctx, bad, new(Comment))
			note("get", err == datastore.ErrNoSuchEntity) //nolint:errorlint // callers compare so
			all := make([]Comment, 3)
			err = v.GetMulti(ctx, []*datastore.Key{good, bad, good}, all)
			several, ok := err.(datastore.MultiError) //nolint:errorlint // likewise
			note("get several", several, ok &&
				several[1] == datastore.ErrNoSuchEntity, //nolint:errorlint // to the letter, as callers compare
				all[0].Text, all[1].Text, all[2].Text)
			_, err = v.RunInTransaction(ctx, func(tx *datastore.Transaction) error { return tx.Get(bad, new(Comment)) })
			note("in a transaction", err == datastore.ErrNoSuchEntity) //nolint:errorlint // likewise
			for _, op := range []string{"=", "!=", "<", ">"} {
				keys, err := v.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("__key__", op, bad).KeysOnly(),
					nil)
				note(op, keys, status.Code(err))
			}
			for _, op := range []string{"in", "not-in"} {
				q := datastore.NewQuery(plainKind).FilterField("__key__", op, []any{good, bad})
				n, err := v.Count(ctx, q)
				note(op, n, status.Code(err))
			}
			n, err := v.Count(ctx, datastore.NewQuery(plainKind).Ancestor(bad))
			note("below", n, status.Code(err))
			if bad.Kind != plainKind {
				return notes
			}
			pending := new(datastore.PendingKey)
			commit, err := v.RunInTransaction(ctx, func(tx *datastore.Transaction) (err error) {
				if err = tx.Delete(bad); err == nil {
					pending, err = tx.Put(plain(0), &Comment{Order: ordersAShard})
				}
				q := datastore.NewQuery(plainKind).FilterField("Order", "=", -5).Transaction(tx)
				_, queryErr := v.GetAll(ctx, q.KeysOnly(), nil)
				return errors.Join(err, queryErr, tx.Get(good, new(Comment)))
			})
			note("delete in a transaction", err)
			if err == nil {
				err = v.DeleteMulti(ctx, []*datastore.Key{bad, commit.Key(pending), good})
			}
			note("delete several", err, v.Get(ctx, good, new(Comment)))
			_, err = v.RunInTransaction(ctx, func(tx *datastore.Transaction) error { return tx.Delete(bad) })
			note("delete", v.Delete(ctx, bad), err)
			n, err = v.Count(ctx, datastore.NewQuery(plainKind))
			note("remaining", n, err)
			return notes
		}
		got, want := do(s), do(client)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, want)
		}
		if err := errors.Join(s.Delete(ctx, good), client.Delete(ctx, good)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeys puts comments without an order, or under keys that belong to no shard. The errors must
// be at the comments' positions, and the call must write nothing.
func TestKeys(t *testing.T) {
	s := newStore(t, 2)
	good, err := s.Put(t.Context(), plain(0), &Comment{Order: ordersAShard})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	foreign := plain(ID(good.ID))
	foreign.Namespace = "x"
	for name, c := range map[string]struct {
		key  *datastore.Key
		want string
	}{
		"a name":             {datastore.NameKey(plainKind, "x", nil), "no names"},
		"a parent":           {datastore.IDKey(plainKind, good.ID, datastore.IDKey("Order", 7, nil)), "have no parent"},
		"a namespace":        {foreign, "default namespace"},
		"a negative ID":      {plain(-5), "damaged: it is negative"},
		"no such database":   {plain(newID(1, 5, 1, 0)), "damaged: it names database 5 of 2"},
		"the wrong database": {plain(newID(1, 0, 1, 0)), "damaged: it names logical shard 1 in database 0"},
		"no such shard": {plain(newID(1, 1, 21, 0)), "belongs to no shard: it names logical shard 21, and there " +
			"have only been [20]"},
		"an order of another": {plain(newID(1, 1, 3, 0)), "order 300000 is in shard 1, and the ID in shard 3"},
	} {
		_, put := s.PutMulti(ctx, []*datastore.Key{plain(0), good, c.key},
			[]Comment{{Order: 5}, {Order: ordersAShard}, {Order: ordersAShard}})
		_, one := s.Put(ctx, c.key, &Comment{Order: ordersAShard})
		_, inTx := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			_, err := tx.Put(c.key, &Comment{Order: ordersAShard})
			return err
		})
		all, ok := put.(datastore.MultiError) //nolint:errorlint // to the letter, as callers compare
		if !ok || len(all) != 3 || all[0] != nil || all[1] != nil || !errors.Is(all[2], datastore.ErrInvalidKey) ||
			!strings.Contains(all[2].Error(), c.want) {
			t.Errorf("%s: %v, want %q at position 2", name, put, c.want)
		}
		for _, err := range []error{one, inTx} {
			if !strings.Contains(fmt.Sprint(err), c.want) || status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
	}
	for range 30 { // the valid comments are in another database than the invalid ones
		keys := []*datastore.Key{plain(0), plain(newID(1, 1, 21, 0))}
		if _, err := s.PutMulti(ctx, keys, []Comment{{Order: 0}, {Order: ordersAShard}}); err == nil {
			t.Error("no error")
		}
	}
	if n, err := s.Count(ctx, datastore.NewQuery(plainKind)); n != 1 || err != nil {
		t.Errorf("%d comments, %v: something of what was refused is written", n, err)
	}
}

// TestProperties checks that comments with properties which the store can't support are refused,
// and that nothing is written.
func TestProperties(t *testing.T) {
	s, ctx := newStore(t, 2), t.Context()
	good, err := s.Put(ctx, plain(0), &Comment{Order: ordersAShard})
	if err != nil {
		t.Fatal(err)
	}
	for want, list := range map[string]datastore.PropertyList{
		"it has no Order":               {{Name: "Text", Value: "x"}},
		"its Order is no integer":       {{Name: "Order", Value: "7"}},
		"its Order is -300000":          {{Name: "Order", Value: int64(-ordersAShard)}},
		"of the store's own":            {{Name: "Order", Value: int64(7)}, {Name: "~writes", Value: "x"}},
		"its Created is no time":        {{Name: "Order", Value: int64(7)}, {Name: "Created", Value: "today"}},
		"its Updated is no time":        {{Name: "Order", Value: int64(7)}, {Name: "Updated", Value: int64(5)}},
		"order 0 is in database 0, and": {{Name: "Order", Value: int64(0)}},
	} {
		key := plain(0)
		if strings.HasPrefix(want, "order 0") {
			key = good
		}
		_, err := s.PutMulti(ctx, []*datastore.Key{plain(0), key},
			[]datastore.PropertyList{{{Name: "Order", Value: int64(7)}}, list})
		all, ok := err.(datastore.MultiError) //nolint:errorlint // to the letter, as callers compare
		if !ok || all[0] != nil || !strings.Contains(fmt.Sprint(all[1]), want) {
			t.Errorf("%v, want %q at position 1", err, want)
		}
	}
	if n, err := s.Count(ctx, datastore.NewQuery(plainKind)); n != 1 || err != nil {
		t.Errorf("%d comments, %v: something of what was refused is written", n, err)
	}
}

// TestRefused checks that errors name the feature of Datastore that the store does not support.
func TestRefused(t *testing.T) {
	s := newStore(t, 2)
	ctx := t.Context()
	table := datastore.NewQuery(plainKind)
	for i := range int64(4) {
		if _, err := s.Put(ctx, plain(0), &datastore.PropertyList{{Name: "Order", Value: i * ordersAShard},
			{Name: "Tags", Value: []any{"a", "b"}}}); err != nil {
			t.Fatal(err)
		}
	}
	all := func(q *datastore.Query) error { _, err := s.GetAll(ctx, q, new([]datastore.PropertyList)); return err }
	first := s.Run(ctx, table.Limit(1))
	if _, err := first.Next(nil); err != nil {
		t.Fatal(err)
	}
	cursor, err := first.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	other, err := datastore.DecodeCursor("abcd")
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"there is none before the comment": func() error {
			_, err := s.AllocateIDs(ctx,
				[]*datastore.Key{plain(0)})
			return err
		}(),
		"name a kind":            all(datastore.NewQuery("").KeysOnly()),
		"the default namespace":  all(table.Namespace("x")),
		"one of another query":   all(table.Order("Order").Start(cursor)),
		"none of this store":     all(table.Start(other)),
		"several values of Tags": all(table.FilterField("Tags", "in", []any{"a", "b"}).Order("Tags")),
		"ask for whole comments": all(table.FilterField("Order", "in", []any{1, 2}).Order("Order").Project("Tags")),
		"ordered by __scatter__": all(table.Order("__scatter__")),
		"it is in a shard": func() error {
			_, err := s.Put(ctx, datastore.IDKey("Comment20_00", 5, nil),
				&Comment{})
			return err
		}(),
		"does not explain": func() error {
			_, err := s.GetAllWithOptions(ctx, table, new([]Comment), datastore.ExplainOptions{Analyze: true})
			return err
		}(),
		"before database 1": func() error {
			_, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				if _, err := tx.Put(plain(0), &Comment{Order: 0}); err != nil {
					return err
				}
				_, err := s.GetAll(ctx, table.Transaction(tx), new([]datastore.PropertyList))
				return err
			})
			return err
		}(),
		"within one database": func() error {
			_, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				_, err := tx.PutMulti([]*datastore.Key{plain(0), plain(0)},
					[]Comment{{Order: 0}, {Order: ordersAShard}})
				return err
			})
			return err
		}(),
		"can't be transformed": func() error {
			_, err := s.PutWithOptions(ctx, &datastore.PutRequest{Key: plain(0), Entity: &Comment{},
				Transforms: []datastore.PropertyTransform{
					datastore.Increment("Order", 5)}})
			return err
		}(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if n, err := s.Count(ctx, table); n != 4 || err != nil {
		t.Errorf("%d comments, %v: something of what was refused is written", n, err)
	}
}
