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

// A warehouse is a server that ships orders, on a bad network. For every third request it does the
// work, but drops the answer, so the sender does not know whether the work was done. It recognises
// a repeated request by its idempotency key.
type warehouse struct {
	mu       sync.Mutex
	done     map[string]bool // the idempotency keys of requests that were carried out
	shipped  map[string]int  // how many times each order was shipped
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
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
}

// A sender sends requests to a warehouse.
type sender struct {
	url    string
	client *http.Client
}

// attempts is the maximum number of attempts of a request.
const attempts = 10

// send sends an order to the warehouse. It repeats the request, with the same idempotency key,
// until it gets an answer.
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
