package main

import (
	"context"
	"errors"
	"strings"
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

// TestTransaction runs transactions on comments and other kinds. Each must take effect completely
// or not at all.
func TestTransaction(t *testing.T) {
	s := newStore(t, 2)
	ctx := t.Context()
	shop := datastore.NameKey("Shop", "x", nil)
	type visits struct{ N int }
	var pending *datastore.PendingKey
	for _, opts := range [][]datastore.TransactionOption{nil, {datastore.BeginLater}} {
		commit, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var v visits
			if err := tx.Get(shop, &v); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
				return err
			}
			v.N++
			if _, err := tx.Put(shop, &v); err != nil {
				return err
			}
			var err error
			pending, err = tx.Put(plain(0), &Comment{Order: 7, Text: "well done"})
			return err
		}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		c := new(Comment)
		if err := s.Get(ctx, commit.Key(pending), c); err != nil || c.Text != "well done" || c.Created.IsZero() {
			t.Errorf("%+v, %v", c, err)
		}
	}
	key := commitKey(t, s)
	gaveUp := errors.New("gave up")
	if _, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		if err := tx.DeleteMulti([]*datastore.Key{key, shop}); err != nil {
			return err
		}
		return gaveUp
	}); !errors.Is(err, gaveUp) {
		t.Error(err)
	}
	var v visits
	if err := s.Get(ctx, shop, &v); err != nil || v.N != 2 {
		t.Errorf("%+v, %v, want 2 visits", v, err)
	}
	if left := len(s.router.transactions); left != 0 {
		t.Errorf("%d transactions are kept after their end", left)
	}
}

// TestTransactionChangesTwice changes one comment several times in one transaction.
func TestTransactionChangesTwice(t *testing.T) {
	s := newStore(t, 2)
	key := commitKey(t, s)
	if _, err := s.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
		if err := tx.Delete(key); err != nil {
			return err
		}
		_, err := tx.Put(key, &Comment{Order: 7, Text: "again"})
		return err
	}); err != nil {
		t.Error(err)
	}
	c := new(Comment)
	if err := s.Get(t.Context(), key, c); err != nil || c.Text != "again" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestTransactionReadsASnapshot reads all comments of an order, and entities of other kinds, in a
// transaction.
func TestTransactionReadsASnapshot(t *testing.T) {
	s := newStore(t, 2)
	ctx := t.Context()
	commitKey(t, s)
	if _, err := s.Put(ctx, datastore.NameKey("Shop", "x", nil), &struct{ N int }{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		if _, err := s.Put(ctx, plain(0), &Comment{Order: 7, Text: "later"}); err != nil {
			return err
		}
		of := datastore.NewQuery(plainKind).FilterField("Order", "=", 7).Transaction(tx)
		before, err := s.Count(ctx, of)
		if err != nil {
			return err
		}
		if _, err := s.Put(ctx, plain(0), &Comment{Order: 7, Text: "later still"}); err != nil {
			return err
		}
		after, err := s.RunAggregationQuery(ctx, of.NewAggregationQuery().WithCount("n"))
		if err == nil && after["n"].(*pb.Value).GetIntegerValue() != int64(before) {
			t.Errorf("%v comments after %d: a transaction sees one snapshot", after, before)
		}
		var shops []struct{ N int }
		if _, err := s.GetAll(ctx, datastore.NewQuery("Shop").Transaction(tx), &shops); err != nil || len(shops) != 1 {
			t.Errorf("%v, %v", shops, err)
		}
		return err
	}, datastore.ReadOnly); err != nil {
		t.Error(err)
	}
}

// TestTransactionsOfOneComment runs two concurrent transactions that change the same comment.
func TestTransactionsOfOneComment(t *testing.T) {
	s := newStore(t, 2)
	ctx, key, attempts := t.Context(), commitKey(t, s), 0
	if _, err := s.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		attempts++
		c := new(Comment)
		if err := tx.Get(key, c); err != nil {
			return err
		}
		if attempts == 1 {
			if _, err := s.Put(ctx, key, &Comment{Order: 7, Text: "theirs"}); err != nil {
				return err
			}
		}
		c.Text += ", and mine"
		_, err := tx.Put(key, c)
		return err
	}); err != nil || attempts != 2 {
		t.Errorf("%d attempts, %v", attempts, err)
	}
	c := new(Comment)
	if err := s.Get(ctx, key, c); err != nil || c.Text != "theirs, and mine" {
		t.Errorf("%+v, %v", c, err)
	}
	if left := len(s.router.transactions); left != 0 {
		t.Errorf("%d transactions are kept after their end", left)
	}
}

func commitKey(t *testing.T, s *Store) *datastore.Key {
	t.Helper()
	key, err := s.Put(t.Context(), plain(0), &Comment{Order: 7})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestOtherKinds checks that calls about other kinds behave as without the store, also if they are
// combined with comments.
func TestOtherKinds(t *testing.T) {
	s := newStore(t, 2)
	ctx := t.Context()
	type shop struct{ N int }
	keys, err := s.PutMulti(ctx, []*datastore.Key{datastore.IncompleteKey("Shop", nil), plain(0),
		datastore.NameKey("Shop", "x", nil)},
		[]any{&shop{1}, &Comment{Order: ordersAShard}, &shop{2}})
	if err != nil {
		t.Fatal(err)
	}
	under := datastore.NameKey("Reply", "r", keys[1]) // the parent of an entity of another kind may be a comment
	if _, err := s.Put(ctx, under, &shop{3}); err != nil {
		t.Fatal(err)
	}
	keys = append(keys, under, datastore.NameKey("Shop", "none", nil))
	err = s.GetMulti(ctx, keys, []any{new(shop), new(Comment), new(shop), new(shop), new(shop)})
	var all datastore.MultiError
	if !errors.As(err, &all) || !errors.Is(all[4], datastore.ErrNoSuchEntity) || errors.Join(all[:4]...) != nil {
		t.Errorf("%v, want the last one only to be missing", err)
	}
	for kind, want := range map[string]int{"Shop": 2, "Reply": 1, plainKind: 1} {
		if n, err := s.Count(ctx, datastore.NewQuery(kind)); n != want || err != nil {
			t.Errorf("%d of %s, %v, want %d", n, kind, err, want)
		}
	}
	if found, err := s.GetAll(ctx, datastore.NewQuery("Reply").Ancestor(keys[1]).KeysOnly(), nil); err != nil ||
		len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := s.AllocateIDs(ctx, []*datastore.Key{datastore.IncompleteKey("Shop", nil)}); err != nil {
		t.Error(err)
	}
	if err := s.DeleteMulti(ctx, keys); err != nil {
		t.Error(err)
	}
}

// TestLostCalls loses calls at random, before or after they take effect. Everything that the store
// retries must take effect once.
func TestLostCalls(t *testing.T) {
	t.Parallel() // it mostly waits until calls are made again
	var n atomic.Int64
	var on atomic.Bool
	lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		i := n.Add(1)
		if on.Load() && i%5 == 0 {
			return status.Error(codes.Unavailable, "the call is lost")
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		if on.Load() && i%7 == 0 {
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		return err
	}
	s := openStore(t, opener(t, emulator.ForTest(t, nil), lose))
	on.Store(true)
	var keys []*datastore.Key
	for i := range 40 {
		key, err := s.Put(t.Context(), plain(0), &Comment{Order: someOrder(i)})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if err := s.GetMulti(t.Context(), keys, make([]Comment, len(keys))); err != nil {
		t.Error(err)
	}
	if n, err := s.Count(t.Context(), datastore.NewQuery(plainKind)); n != 40 || err != nil {
		t.Errorf("%d comments, %v, want 40", n, err)
	}
	if err := s.DeleteMulti(t.Context(), keys[:20]); err != nil {
		t.Error(err)
	}
	if all, err := s.GetAll(t.Context(), datastore.NewQuery(plainKind).KeysOnly(), nil); len(all) != 20 || err != nil {
		t.Errorf("%d comments, %v, want 20", len(all), err)
	}
}

// TestMutations writes single properties of comments, and lets the database add to numbers.
func TestMutations(t *testing.T) {
	s := newStore(t, 1)
	ctx := t.Context()
	key, err := s.Put(ctx, plain(0), &Comment{Order: 7, Status: "paid", Author: "ann", Edits: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mutate(ctx, datastore.NewUpdate(key, &Comment{Order: 7, Status: "sent",
		Author: "bob"}).WithPropertyMask("Status")); err != nil {
		t.Fatal(err)
	}
	put, err := s.PutWithOptions(ctx, &datastore.PutRequest{Key: plain(0), Entity: &Comment{Order: 8, Edits: 5},
		Transforms: []datastore.PropertyTransform{datastore.Increment("Edits", 2)}})
	if err != nil || put.Incomplete() {
		t.Fatal(put, err)
	}
	increment := datastore.NewUpdate(key, &Comment{}).WithPropertyMask().WithTransforms(datastore.Increment("Edits", 3))
	if _, err := s.Mutate(ctx, increment); err != nil {
		t.Fatal(err)
	}
	var all []Comment
	if _, err := s.GetAll(ctx, datastore.NewQuery(plainKind).Order("Order"), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Status != "sent" || all[0].Author != "ann" || all[0].Edits != 4 || all[1].Edits != 7 {
		t.Errorf("%+v", all)
	}
	if _, err := s.Mutate(ctx, datastore.NewUpsert(plain(newID(1, 0, 0, 0)),
		&Comment{}).WithPropertyMask("Text")); err == nil || !strings.Contains(err.Error(), "no Order") {
		t.Errorf("a part of a comment that is not there: %v", err)
	}
}

// TestSums aggregates over all shards and over some. It compares the sums, averages and counts with
// the results for a single kind.
func TestSums(t *testing.T) {
	s, client := newStore(t, 2), plainClient(t)
	ctx := t.Context()
	for i := range 60 {
		list := datastore.PropertyList{{Name: "Order", Value: int64(i) * ordersAShard},
			{Name: "Created", Value: someTime.Add(time.Duration(i) * time.Second)}}
		switch i % 4 {
		case 0:
			list = append(list, datastore.Property{Name: "Score", Value: int64(i)})
		case 1:
			list = append(list, datastore.Property{Name: "Score", Value: float64(i) / 2})
		case 2:
			list = append(list, datastore.Property{Name: "Score", Value: "x"})
		}
		key, err := s.Put(ctx, plain(0), &list)
		if err == nil {
			_, err = client.Put(ctx, key, &list)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	table := datastore.NewQuery(plainKind)
	for name, q := range map[string]*datastore.AggregationQuery{
		"a count": table.NewAggregationQuery().WithCount("n"),
		"a sum":   table.NewAggregationQuery().WithSum("Score", "s").WithCount("n"),
		"a sum of integers": table.FilterField("Score", ">", 5).FilterField("Score", "<",
			40).NewAggregationQuery().WithSum("Order", "s"),
		"an average": table.NewAggregationQuery().WithAvg("Score", "a").WithCount("n").WithSum("Score", "s"),
		"an average of none": table.FilterField("Order", "=", 5).NewAggregationQuery().WithAvg("Score",
			"a").WithSum("Score", "s"),
		"of a part": table.Order("-Created").Offset(7).Limit(20).NewAggregationQuery().WithSum("Order",
			"s").WithCount("n"),
		"of an order": table.FilterField("Order", "=", 0).NewAggregationQuery().WithAvg("Score", "a"),
	} {
		got, err := s.RunAggregationQuery(ctx, q)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, err := client.RunAggregationQuery(ctx, q)
		if err != nil {
			t.Fatalf("%s of the plain kind: %v", name, err)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		for alias := range want {
			if g, w := got[alias].(*pb.Value), want[alias].(*pb.Value); g.String() != w.String() {
				t.Errorf("%s, %s: %v, want %v", name, alias, g, w)
			}
		}
	}
}

// TestReadTime reads at a past time. The result must be the state of all shards at that time.
func TestReadTime(t *testing.T) {
	s := newStore(t, 2)
	ctx := t.Context()
	var keys []*datastore.Key
	for i := range 4 {
		key, err := s.Put(ctx, plain(0), &Comment{Order: int64(i) * ordersAShard})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	now := time.Now().Truncate(time.Microsecond) // Datastore refuses a higher precision
	if err := s.DeleteMulti(ctx, keys[:3]); err != nil {
		t.Fatal(err)
	}
	s.WithReadOptions(datastore.ReadTime(now))
	all, err := s.GetAll(ctx, datastore.NewQuery(plainKind).KeysOnly(), nil)
	if err != nil || len(all) != 4 {
		t.Errorf("%d comments, %v, want the 4 that there were", len(all), err)
	}
}

// TestOneMoment writes comments between a read's calls to the shards. The read must see all shards
// as of the time of its start.
func TestOneMoment(t *testing.T) {
	e := emulator.ForTest(t, nil)
	other := openStore(t, opener(t, e))
	ctx := t.Context()
	put := func(n int64) error {
		_, err := other.PutMulti(ctx, []*datastore.Key{plain(0), plain(0)},
			[]Comment{{Order: n}, {Order: n + ordersAShard}})
		return err
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	var armed atomic.Bool
	s := openStore(t, opener(t, e, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		var q *pb.Query
		switch req := req.(type) {
		case *pb.RunQueryRequest:
			q = req.GetQuery()
		case *pb.RunAggregationQueryRequest:
			q = req.GetAggregationQuery().GetNestedQuery()
		}
		if q != nil && q.Kind[0].Name == kindOf(0, 20) && armed.CompareAndSwap(true, false) {
			if err := put(1); err != nil {
				t.Error(err)
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}))
	table := datastore.NewQuery(plainKind)
	armed.Store(true)
	all, err := s.GetAll(ctx, table.KeysOnly(), nil)
	if err != nil || len(all) != 2 || armed.Load() {
		t.Errorf("%d comments, %v, want the 2 that there were", len(all), err)
	}
	armed.Store(true)
	sums, err := s.RunAggregationQuery(ctx, table.NewAggregationQuery().WithCount("n"))
	if err != nil || sums["n"].(*pb.Value).GetIntegerValue() != 4 || armed.Load() {
		t.Errorf("%v comments, %v, want the 4 that there were", sums, err)
	}
}
