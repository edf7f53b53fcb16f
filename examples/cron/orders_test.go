package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestOrders lets senders of each kind send orders to a warehouse that drops answers. Each order
// must be shipped once.
func TestOrders(t *testing.T) {
	r, err := cron(t, "-subscriptions", "1", "-nights", "1", "-orders", "400")
	if err != nil {
		t.Fatal(err)
	}
	o := r.Orders
	for by, want := range map[string]int{byOld: 80, byStored4: 80, byStored8: 80, byJob: 80} {
		if o.SentBy[by] != want {
			t.Errorf("%s has sent %d orders, want %d", by, o.SentBy[by], want)
		}
	}
	if n := o.SentBy[byKeys4] + o.SentBy[byKeys8]; n != 80 {
		t.Errorf("by keys %d orders were sent, want 80", n)
	}
	if o.Dropped < 100 || o.Requests < 500 {
		t.Errorf("of %d requests %d answers were dropped", o.Requests, o.Dropped)
	}
	// If 4 processes become 8, about half of the remainders change. The job writes only orders from
	// before the change.
	if w := o.Rewrite; w.Orders != 240 || w.Changed < 60 || w.Changed > 180 || w.Writes < w.Changed ||
		w.Reads < w.Orders || w.Dollars <= 0 {
		t.Errorf("the remainders were rewritten so: %+v", w)
	}
	if got := fmt.Sprint(o.Refused); !strings.Contains(got, errNotYet.Error()) ||
		!strings.Contains(got, errRunning.Error()) || !strings.Contains(got, errRetired.Error()) {
		t.Errorf("%q was refused", o.Refused)
	}
	text := r.Orders.String()
	for _, want := range []string{"400 orders, each sent once", "a job rewrites", "refused meanwhile"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestFewOrders runs with fewer orders than processes.
func TestFewOrders(t *testing.T) {
	for _, n := range []string{"0", "1", "3"} {
		if _, err := cron(t, "-subscriptions", "1", "-nights", "1", "-orders", n); err != nil {
			t.Errorf("%s orders: %v", n, err)
		}
	}
}

// TestShards checks that shardOf spreads keys of every form evenly over n processes. If n is
// doubled, the orders of each process must be split among two.
func TestShards(t *testing.T) {
	for form, key := range map[string]func(i int) *datastore.Key{
		"numbers that follow each other": func(i int) *datastore.Key {
			return datastore.IDKey("Order", int64(i+1), nil)
		},
		"multiples of 4": func(i int) *datastore.Key {
			return datastore.IDKey("Order", int64(4*i+4), nil)
		},
		"zip codes": func(i int) *datastore.Key {
			return datastore.NameKey("Customer", fmt.Sprintf("%05d", i), nil)
		},
		"UUIDs": func(i int) *datastore.Key {
			return datastore.NameKey("Video", fmt.Sprintf("%08x-%04x-4000-8000-000000000000", i*2654435761, i), nil)
		},
		"reference numbers": func(i int) *datastore.Key {
			return datastore.NameKey("Transfer", fmt.Sprintf("RF-2026-%07d", i), nil)
		},
	} {
		var sizes [4]int
		for i := range 10_000 {
			k := key(i)
			of4, of8 := shardOf(k, 4), shardOf(k, 8)
			if of4 < 0 || of4 >= 4 || of8%4 != of4 {
				t.Fatalf("%v is in shard %d of 4, and in shard %d of 8", k, of4, of8)
			}
			sizes[of4]++
		}
		for i, n := range sizes {
			if n < 2300 || n > 2700 {
				t.Errorf("%s: shard %d has %d of 10,000 keys", form, i, n)
			}
		}
	}
}

// A floor is a Datastore with orders, and a warehouse to which the test sends them.
type floor struct {
	*testing.T
	client *datastore.Client
	*warehouse
	sender
}

func newFloor(t *testing.T, orders int) *floor {
	client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	w := newWarehouse()
	s, closing := w.open()
	t.Cleanup(closing)
	f := &floor{t, client, w, s}
	f.must(addOrders(t.Context(), client, 0, orders))
	return f
}

func (f *floor) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *floor) turn(turn int64, err error) int64 {
	f.Helper()
	f.must(err)
	return turn
}

// wantSent checks how many orders each sender has sent. It also checks that each order that was
// shipped was shipped once.
func (f *floor) wantSent(want map[string]int) {
	f.Helper()
	var all []Order
	keys, err := f.client.GetAll(f.Context(), datastore.NewQuery("Order"), &all)
	f.must(err)
	got := make(map[string]int)
	for i, o := range all {
		if got[o.By]++; f.shipped[keys[i].Encode()] > 1 || o.Status == sent && f.shipped[keys[i].Encode()] != 1 {
			f.Errorf("order %v is %s, and was shipped %d times", keys[i], o.Status, f.shipped[keys[i].Encode()])
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		f.Errorf("sent by %v, want %v", got, want)
	}
}

// TestTakeover checks that a battery can only start after the old cron was retired and its last run
// has ended.
func TestTakeover(t *testing.T) {
	f := newFloor(t, 1)
	ctx, c := t.Context(), f.client
	start := func(want error) {
		t.Helper()
		if _, err := startBattery(ctx, c, 4, false); !errors.Is(err, want) {
			t.Errorf("the battery starts with %v, want %v", err, want)
		}
	}
	start(errNotYet)
	old := f.turn(startOld(ctx, c))
	if _, err := startOld(ctx, c); !errors.Is(err, errRunning) {
		t.Errorf("a second run starts beside the first one: %v", err)
	}
	f.must(endOld(ctx, c, old))
	start(errNotYet) // the old cron has no run now, but is not retired
	old = f.turn(startOld(ctx, c))
	f.must(retireOld(ctx, c))
	start(errRunning)
	f.must(endOld(ctx, c, old-1)) // the end of an earlier run, which comes late
	start(errRunning)
	f.must(endOld(ctx, c, old))
	if _, err := startOld(ctx, c); !errors.Is(err, errRetired) {
		t.Errorf("the old cron starts again: %v", err)
	}
	start(nil)
}

// TestOldCronWakes stops a run of the old cron after it has sent a page of orders, and before it
// marks them as sent. Meanwhile an operator takes the run for dead, and a battery starts. When the
// run continues, it must mark nothing. The battery sends the page again with the same idempotency
// keys, so that nothing is shipped twice.
func TestOldCronWakes(t *testing.T) {
	f := newFloor(t, 60)
	ctx := t.Context()
	old := process{name: byOld, client: f.client, turn: f.turn(startOld(ctx, f.client)), n: 1}
	sentSoFar, battery := 0, process{name: byKeys4, client: f.client, send: f.send}
	old.send = func(ctx context.Context, key *datastore.Key) error {
		err := f.send(ctx, key)
		if sentSoFar++; sentSoFar == 30 {
			f.must(retireOld(ctx, f.client))
			f.must(relieveOld(ctx, f.client))
			battery.turn = f.turn(startBattery(ctx, f.client, 4, false))
		}
		return err
	}
	f.must(old.run(ctx))
	f.must(endOld(ctx, f.client, old.turn))
	if f.wantSent(map[string]int{"": 60}); len(f.shipped) != pageSize {
		t.Errorf("%d orders were shipped by the old cron, want a page of %d", len(f.shipped), pageSize)
	}
	f.must(battery.battery(ctx, 4))
	f.wantSent(map[string]int{byKeys4: 60})
}

// TestCancelled cancels or deletes orders after the first one was sent: half of the sender's
// present page, and all later ones. The orders of that page are still shipped, because the sender
// can't know of the change. No later one may be shipped, and no cancelled order may be marked as
// sent.
func TestCancelled(t *testing.T) {
	for form, start := range map[string]func(f *floor) process{
		"by remainder": func(f *floor) process { return f.only(true) },
		"by keys":      func(f *floor) process { return f.only(false) },
	} {
		for _, deleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/deleted %v", form, deleted), func(t *testing.T) {
				f := newFloor(t, 200)
				ctx, p := t.Context(), start(f)
				var first sync.Once
				p.send = func(ctx context.Context, key *datastore.Key) error {
					first.Do(func() { f.cancel(pageSize/2, 200, deleted) })
					return f.send(ctx, key)
				}
				f.must(p.battery(ctx, 1))
				if len(f.shipped) != pageSize {
					t.Errorf("%d orders were shipped, want the page of %d", len(f.shipped), pageSize)
				}
				f.wantStatus(pageSize/2, 200, deleted)
			})
		}
	}
}

// TestJobCancelled does the same as TestCancelled, with a job as the sender. Its pages have the
// same size. The job may have read a second page before the change. It can't commit that page, and
// then reads the rest of the query again.
func TestJobCancelled(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		var f *floor
		var first sync.Once
		shipped := make(map[string]bool)
		var mu sync.Mutex
		job := newSend(func(_ context.Context, key *datastore.Key) error {
			first.Do(func() { f.cancel(pageSize/2, 200, deleted) })
			mu.Lock()
			defer mu.Unlock()
			shipped[key.Encode()] = true
			return nil
		})
		mappertest.Run(t, []mapper.AnyMapper{job}, &mappertest.Options{Workers: 1},
			func(t *testing.T, w *mappertest.Env) {
				f = &floor{T: t, client: w.Client}
				f.must(addOrders(t.Context(), w.Client, 0, 200))
				j, err := job.Start(t.Context(), w.Engine, pendingOrders, mapper.NoParams{},
					&mapper.StartOptions{PageSize: pageSize})
				f.must(err)
				_, err = finished(t.Context(), j)
				f.must(err)
				if len(shipped) != pageSize && len(shipped) != 2*pageSize {
					t.Errorf("%d orders were shipped, want one or two pages of %d", len(shipped), pageSize)
				}
				f.wantStatus(pageSize/2, 200, deleted)
			})
	}
}

// only starts a battery of one process, and returns the process.
func (f *floor) only(stored bool) process {
	f.Helper()
	f.must(retireOld(f.Context(), f.client))
	turn := f.turn(startBattery(f.Context(), f.client, 1, stored))
	return process{name: "p", client: f.client, send: f.send, turn: turn, stored: stored}
}

// cancel cancels or deletes the orders with the numbers from to to-1.
func (f *floor) cancel(from, to int, deleted bool) {
	f.Helper()
	var keys []*datastore.Key
	for i := from; i < to; i++ {
		keys = append(keys, datastore.IDKey("Order", int64(i+1), nil))
	}
	if deleted {
		f.must(f.client.DeleteMulti(f.Context(), keys))
		return
	}
	all := make([]Order, len(keys))
	for i := range all {
		all[i].Status = cancelled
	}
	_, err := f.client.PutMulti(f.Context(), keys, all)
	f.must(err)
}

// wantStatus checks that the orders with the numbers from to to-1 are cancelled or deleted, and
// that all earlier ones are sent.
func (f *floor) wantStatus(from, to int, deleted bool) {
	f.Helper()
	for i := range to {
		want := sent
		if i >= from {
			want = cancelled
		}
		var o Order
		err := f.client.Get(f.Context(), datastore.IDKey("Order", int64(i+1), nil), &o)
		if i >= from && deleted {
			if !errors.Is(err, datastore.ErrNoSuchEntity) {
				f.Errorf("order %d was deleted, and is there again: %+v, %v", i+1, o, err)
			}
			continue
		}
		if err != nil || o.Status != want || (o.By != "") != (want == sent) {
			f.Errorf("order %d is %+v, want it %s: %v", i+1, o, want, err)
		}
	}
}

// TestRelieved ends the turn of a process before it starts, and while it sends a page. After that,
// the process must not start another page.
func TestRelieved(t *testing.T) {
	for _, stored := range []bool{true, false} {
		for _, after := range []int{0, 1, pageSize} {
			f := newFloor(t, 3*pageSize)
			p := f.only(stored)
			sends := 0
			relieve := func() {
				if sends == after {
					f.turn(startBattery(f.Context(), f.client, 1, stored))
				}
			}
			p.send = func(context.Context, *datastore.Key) error {
				sends++
				relieve()
				return nil
			}
			relieve()
			f.must(p.battery(t.Context(), 1))
			if want := min(after, 1) * pageSize; sends != want {
				t.Errorf("stored %v: relieved after %d orders, it has sent %d, want %d", stored, after, sends, want)
			}
			f.wantSent(map[string]int{"": 3 * pageSize})
		}
	}
}

// TestRewrite rewrites the remainders of pending orders for 8 processes while new orders come. It
// must write only orders whose remainder changes.
func TestRewrite(t *testing.T) {
	mappertest.Run(t, []mapper.AnyMapper{rewrite}, nil, func(t *testing.T, w *mappertest.Env) {
		f, ctx := &floor{T: t, client: w.Client}, t.Context()
		f.must(retireOld(ctx, w.Client))
		f.turn(startBattery(ctx, w.Client, 4, true))
		f.must(addOrders(ctx, w.Client, 0, 100))
		f.must(beginRewrite(ctx, w.Client, 8))
		f.must(addOrders(ctx, w.Client, 100, 120))
		want := int64(0)
		for i := range 100 {
			if key := datastore.IDKey("Order", int64(i+1), nil); shardOf(key, 4) != shardOf(key, 8) {
				want++
			}
		}
		job, err := rewrite.Start(ctx, w.Engine, mapper.Query{Kind: "Order"}, 8, nil)
		f.must(err)
		status, err := finished(ctx, job)
		f.must(err)
		if status.Processed != 120 || status.Written != want || want == 0 {
			t.Errorf("%d orders of %d were written, want %d of 120", status.Written, status.Processed, want)
		}
		var all []Order
		keys, err := w.Client.GetAll(ctx, datastore.NewQuery("Order"), &all)
		f.must(err)
		for i, o := range all {
			if want := shardOf(keys[i], 8); o.Remainder != want || o.Status != pending {
				t.Errorf("%v is %s with the remainder %d by 8, want %d", keys[i], o.Status, o.Remainder, want)
			}
		}
	})
}

// TestDeadProcess kills a process after it has sent a page. The next process must send the page
// again, with the same idempotency keys.
func TestDeadProcess(t *testing.T) {
	f := newFloor(t, 40)
	ctx, kill := context.WithCancel(t.Context())
	turn := f.turn(startOld(ctx, f.client))
	f.must(retireOld(ctx, f.client))
	calls := 0
	dying := process{name: byOld, client: f.client, turn: turn, n: 1,
		send: func(ctx context.Context, key *datastore.Key) error {
			err := f.send(ctx, key)
			if calls++; calls == 40 {
				kill()
			}
			return err
		}}
	if err := dying.run(ctx); err == nil {
		t.Error("it died, and says nothing")
	}
	ctx = t.Context()
	f.must(relieveOld(ctx, f.client))
	for _, stored := range []bool{true, false} {
		p := process{name: "next", client: f.client, send: f.send, turn: f.turn(startBattery(ctx, f.client, 1, stored)),
			stored: stored}
		f.must(p.battery(ctx, 1))
	}
	f.wantSent(map[string]int{"next": 40})
	if f.dropped == 0 || len(f.shipped) != 40 {
		t.Errorf("%d answers dropped, %d orders shipped", f.dropped, len(f.shipped))
	}
}

// TestRescale changes the number of processes from 4 to 8 and to 3 while orders come. The battery
// after each change must send every order.
func TestRescale(t *testing.T) {
	f := newFloor(t, 0)
	ctx := t.Context()
	f.must(retireOld(ctx, f.client))
	next, ship := 0, func(n int) {
		t.Helper()
		p := process{name: fmt.Sprint(n), client: f.client, send: f.send,
			turn: f.turn(startBattery(ctx, f.client, n, true)), stored: true}
		f.must(p.battery(ctx, n))
	}
	more := func() {
		t.Helper()
		f.must(addOrders(ctx, f.client, next, next+50))
		next += 50
	}
	f.turn(startBattery(ctx, f.client, 4, true))
	more()
	ship(4)
	want := map[string]int{"4": 50}
	for _, n := range []int{8, 3} {
		more() // these orders get remainders for the old number of processes
		if _, err := startBattery(ctx, f.client, n, true); err == nil {
			t.Fatalf("%d processes start though the remainders are of others", n)
		}
		f.must(beginRewrite(ctx, f.client, n))
		more() // these orders get remainders for the new number of processes
		if _, err := startBattery(ctx, f.client, n, true); !errors.Is(err, errRewriting) {
			t.Fatalf("%d processes start while the remainders are rewritten: %v", n, err)
		}
		f.rewriteByHand(n)
		f.must(endRewrite(ctx, f.client, n))
		ship(n)
		want[fmt.Sprint(n)] = 100
	}
	f.wantSent(want)
}

// rewriteByHand changes remainders like the mapper rewrite, but without a job.
func (f *floor) rewriteByHand(n int) {
	f.Helper()
	var all []Order
	keys, err := f.client.GetAll(f.Context(), datastore.NewQuery("Order"), &all)
	f.must(err)
	for i := range all {
		all[i].Remainder = shardOf(keys[i], n)
	}
	_, err = f.client.PutMulti(f.Context(), keys, all)
	f.must(err)
}

// TestForms compares the reads of the two forms of a battery. With stored remainders, each order is
// read once. Without them, each of n processes reads the keys of all orders.
func TestForms(t *testing.T) {
	for _, stored := range []bool{true, false} {
		e := emulator.ForTest(t, nil)
		client, err := e.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		f := &floor{T: t, client: client, warehouse: newWarehouse()}
		f.must(retireOld(t.Context(), client))
		turn := f.turn(startBattery(t.Context(), client, 4, stored))
		f.must(addOrders(t.Context(), client, 0, 200))
		var marked atomic.Int64
		p := process{name: "p", client: client, turn: turn, stored: stored, sent: &marked,
			send: func(context.Context, *datastore.Key) error {
				return nil
			}}
		used := e.Usage()
		for i := range 4 { // the processes run one after the other
			one := p
			one.i, one.n = i, 4
			before := marked.Load()
			f.must(one.run(t.Context()))
			if n := marked.Load() - before; n < 30 || n > 70 {
				t.Errorf("stored %v: process %d has sent %d of 200 orders", stored, i, n)
			}
		}
		cost := e.Usage().Sub(used)
		most, keys := cost.SmallOps, int64(200)
		if !stored {
			keys = 4 * 200 * 5 / 8 // the processes before have sent their orders, which are no longer pending
		}
		if marked.Load() != 200 || most < keys-60 || most > keys+60 {
			t.Errorf("stored %v: %d sent, %d keys read, want about %d; %+v", stored, marked.Load(), most, keys, cost)
		}
	}
}

// TestShardsStopped checks that processes end when their context is cancelled.
func TestShardsStopped(t *testing.T) {
	f := newFloor(t, 500)
	f.must(retireOld(t.Context(), f.client))
	for _, stored := range []bool{true, false} {
		p := process{name: "p", client: f.client, send: f.send,
			turn: f.turn(startBattery(t.Context(), f.client, 4, stored)), stored: stored}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.battery(ctx, 4); err == nil {
			t.Errorf("stored %v: a battery told to end before its start returned no error", stored)
		}
	}
}
