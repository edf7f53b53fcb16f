package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
)

// An ordersResult has the number of orders by sender, and numbers of requests.
type ordersResult struct {
	Orders   int            `json:"orders"`
	SentBy   map[string]int `json:"sent_by"`
	Requests int            `json:"requests"` // number of requests to the warehouse
	Dropped  int            `json:"dropped"`  // number of requests whose answers the warehouse dropped
	Refused  []string       `json:"refused"`  // the errors of senders that tried to start too early or too late

	Rewrite struct { // the job that changes the stored remainders from 4 to 8 processes
		Orders  int64   `json:"orders"`
		Changed int64   `json:"changed"`
		Reads   int64   `json:"reads"`
		Writes  int64   `json:"writes"`
		Dollars float64 `json:"dollars"`
	} `json:"rewrite"`
}

// Names of the senders, in the order of their turns.
const (
	byOld     = "old cron"
	byStored4 = "4 by remainder"
	byStored8 = "8 by remainder"
	byKeys4   = "4 by keys"
	byKeys8   = "8 by keys"
	byJob     = "job"
)

// A takeover is the part of the example about orders: the old cron sends some, and then its
// replacements do, one after the other.
type takeover struct {
	on      *cloud.Cloud
	c       config
	send    func(ctx context.Context, order *datastore.Key) error
	sending *mapper.Mapper[mapper.NoParams]
	r       ordersResult
	next    int // number of the next order to write
}

// sendOrders sends all orders, each once. The senders are the old cron, and then batteries, which
// are several processes. 4 processes and then 8 select orders by a stored remainder of the key's
// hash. The next batteries select orders by their keys. The last sender is a job.
func sendOrders(
	ctx context.Context, on *cloud.Cloud, c config, sending *mapper.Mapper[mapper.NoParams], w *warehouse, s sender,
) (ordersResult, error) {
	t := takeover{on: on, c: c, send: s.send, sending: sending, r: ordersResult{Orders: c.orders}}
	for _, step := range []func(context.Context) error{t.byOldCron, t.byRemainder, t.rewrite, t.byRemainderAgain,
		t.byKeys, t.byJob} {
		if err := step(ctx); err != nil {
			return t.r, err
		}
	}
	return t.r, t.check(ctx, w)
}

// more writes the next fifth of the orders.
func (t *takeover) more(ctx context.Context) error {
	return t.add(ctx, (t.c.orders+4)/5)
}

// add writes the next n orders, or all that are left if these are fewer.
func (t *takeover) add(ctx context.Context, n int) error {
	from := t.next
	t.next = min(t.c.orders, from+n)
	return addOrders(ctx, t.on.Client, from, t.next)
}

// refused checks that a sender could not start: err must be the error want. It records this, or
// returns an error if err is another one.
func (t *takeover) refused(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("a start is answered with %w, want %w", err, want)
	}
	t.r.Refused = append(t.r.Refused, want.Error())
	return nil
}

// byOldCron lets the old cron send the first orders. It checks that a battery can't start before
// the old cron has ended and was retired.
func (t *takeover) byOldCron(ctx context.Context) error {
	if err := t.more(ctx); err != nil {
		return err
	}
	turn, err := startOld(ctx, t.on.Client)
	if err != nil {
		return err
	}
	_, err = startBattery(ctx, t.on.Client, 4, true)
	if err := t.refused(err, errNotYet); err != nil {
		return err
	}
	if err := retireOld(ctx, t.on.Client); err != nil {
		return err
	}
	_, err = startBattery(ctx, t.on.Client, 4, true)
	if err := t.refused(err, errRunning); err != nil {
		return err
	}
	old := process{name: byOld, client: t.on.Client, send: t.send, turn: turn, n: 1}
	if err := old.run(ctx); err != nil {
		return err
	}
	if err := endOld(ctx, t.on.Client, turn); err != nil {
		return err
	}
	_, err = startOld(ctx, t.on.Client) // as if somebody had left the old cron in the crontab
	return t.refused(err, errRetired)
}

// byRemainder lets a battery of 4 processes send orders. Each process sends the orders whose stored
// remainder is its number. Orders that were written before the battery's start store none.
func (t *takeover) byRemainder(ctx context.Context) error {
	turn, err := startBattery(ctx, t.on.Client, 4, true)
	if err != nil {
		return err
	}
	if err := t.more(ctx); err != nil {
		return err
	}
	return process{name: byStored4, client: t.on.Client, send: t.send, turn: turn, stored: true}.battery(ctx, 4)
}

// rewrite runs a job that changes the stored remainders of all orders from 4 to 8 processes. Before
// the job, it writes new orders. It writes the first half before the number of processes changes,
// so with remainders for 4. The other half gets remainders for 8.
func (t *takeover) rewrite(ctx context.Context) error {
	fifth := (t.c.orders + 4) / 5
	if err := t.add(ctx, fifth/2); err != nil {
		return err
	}
	_, err := startBattery(ctx, t.on.Client, 8, true)
	if err == nil {
		return errors.New("8 processes may filter by the remainders of 4")
	}
	t.r.Refused = append(t.r.Refused, err.Error())
	if err := beginRewrite(ctx, t.on.Client, 8); err != nil {
		return err
	}
	if err := t.add(ctx, fifth-fifth/2); err != nil {
		return err
	}
	used := t.on.Usage()
	job, err := rewrite.Start(ctx, t.on.Engine, mapper.Query{Kind: "Order"}, 8,
		&mapper.StartOptions{ID: "rewrite-for-8", PageSize: t.c.Page, AllowEmpty: true})
	if err != nil {
		return err
	}
	status, err := finished(ctx, job)
	if err != nil {
		return err
	}
	cost := t.on.Usage().Sub(used)
	t.r.Rewrite.Orders, t.r.Rewrite.Changed = status.Processed, status.Written
	t.r.Rewrite.Reads, t.r.Rewrite.Writes, t.r.Rewrite.Dollars = cost.Reads, cost.Writes,
		billing.NAM5.Dollars(billing.Usage{Reads: cost.Reads, Writes: cost.Writes})
	return endRewrite(ctx, t.on.Client, 8)
}

// byRemainderAgain lets a battery of 8 processes send the orders that came before and during the
// job that has changed the stored remainders.
func (t *takeover) byRemainderAgain(ctx context.Context) error {
	turn, err := startBattery(ctx, t.on.Client, 8, true)
	if err != nil {
		return err
	}
	return process{name: byStored8, client: t.on.Client, send: t.send, turn: turn, stored: true}.battery(ctx, 8)
}

// byKeys lets 4 processes send orders, which they select by keys. After a third of the orders, 8
// other processes start without waiting for them. The 4 notice at their next commit that others
// have taken over.
func (t *takeover) byKeys(ctx context.Context) error {
	if err := t.more(ctx); err != nil {
		return err
	}
	turn, err := startBattery(ctx, t.on.Client, 4, false)
	if err != nil {
		return err
	}
	var marked atomic.Int64
	four := process{name: byKeys4, client: t.on.Client, send: t.send, turn: turn, sent: &marked}
	ended := make(chan error, 1)
	go func() { ended <- four.battery(ctx, 4) }()
	for running := true; running && marked.Load() < int64(t.c.orders/15); {
		select {
		case err := <-ended:
			if ended <- err; err != nil {
				return err
			}
			running = false
		case <-time.After(time.Millisecond):
		}
	}
	if turn, err = startBattery(ctx, t.on.Client, 8, false); err != nil {
		return err
	}
	eight := process{name: byKeys8, client: t.on.Client, send: t.send, turn: turn}
	return errors.Join(eight.battery(ctx, 8), <-ended)
}

// byJob lets a job send the remaining orders. The job gets a turn like a battery. So if a process
// of the last battery continues late, it commits nothing.
func (t *takeover) byJob(ctx context.Context) error {
	if err := t.more(ctx); err != nil {
		return err
	}
	if _, err := startBattery(ctx, t.on.Client, 1, false); err != nil {
		return err
	}
	job, err := t.sending.Start(ctx, t.on.Engine, pendingOrders, mapper.NoParams{},
		&mapper.StartOptions{ID: "send-orders", PageSize: t.c.Page, AllowEmpty: true})
	if err != nil {
		return err
	}
	_, err = finished(ctx, job)
	return err
}

// finished waits until a job has ended, and returns an error if it has not succeeded.
func finished(ctx context.Context, job *mapper.Job) (*mapper.Status, error) {
	status, err := job.Wait(ctx)
	if err == nil {
		err = status.Err()
	}
	return status, err
}

// check reads the orders, and returns an error unless the warehouse has shipped each of them once.
func (t *takeover) check(ctx context.Context, w *warehouse) error {
	var all []Order
	keys, err := t.on.Client.GetAll(ctx, datastore.NewQuery("Order"), &all)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.r.SentBy, t.r.Requests, t.r.Dropped = make(map[string]int), w.requests, w.dropped
	for i, o := range all {
		if n := w.shipped[keys[i].Encode()]; o.Status != sent || n != 1 {
			return fmt.Errorf("order %v is %s, and was shipped %d times", keys[i], o.Status, n)
		}
		if want := shardOf(keys[i], 8); o.Remainder != want {
			return fmt.Errorf("order %v has the remainder %d, want %d by 8", keys[i], o.Remainder, want)
		}
		t.r.SentBy[o.By]++
	}
	if len(all) != t.c.orders || len(w.shipped) != t.c.orders {
		return fmt.Errorf("%d orders, and %d were shipped, want %d", len(all), len(w.shipped), t.c.orders)
	}
	return nil
}

// open starts the warehouse's server on a loopback port. It returns a sender for it, and a function
// that stops it.
func (w *warehouse) open() (s sender, closing func()) {
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = nil
	server.Start()
	return sender{server.URL, &http.Client{Timeout: 10 * time.Second}}, server.Close
}
