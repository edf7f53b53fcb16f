package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
)

// A warehouse is a server that ships orders, on a bad network. It drops the answers to every third
// request after it has done the work. So a sender can't know whether the work was done. The
// warehouse recognises repetitions by the request's idempotency key.
type warehouse struct {
	mu       sync.Mutex
	done     map[string]bool // the requests that were carried out, by idempotency key
	shipped  map[string]int  // how often each order was shipped
	requests int
	dropped  int
}

func newWarehouse() *warehouse {
	return &warehouse{done: make(map[string]bool), shipped: make(map[string]int)}
}

func (w *warehouse) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" || len(order) == 0 {
		http.Error(rw, "an order and its header Idempotency-Key are needed", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done[key] {
		w.done[key] = true
		w.shipped[string(order)]++
	}
	if w.requests++; w.requests%3 == 0 {
		w.dropped++
		panic(http.ErrAbortHandler) // the connection is closed without an answer
	}
}

// A sender sends requests to a warehouse.
type sender struct {
	url    string
	client *http.Client
}

// attempts is how often a sender makes a request until it is answered.
const attempts = 10

// send sends an order. It repeats the request until it is answered, with the same idempotency key.
func (s sender) send(ctx context.Context, order *datastore.Key) error {
	var err error
	for attempt := range attempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond << attempt):
			}
		}
		if err = s.ask(ctx, order); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the warehouse has not answered %d requests: %w", attempts, err)
}

func (s sender) ask(ctx context.Context, order *datastore.Key) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(order.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", sendingKey(order))
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the warehouse answered %s", resp.Status)
	}
	return nil
}
