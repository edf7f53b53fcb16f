package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const (
	healthTime = 2 * time.Second // that the database has to answer in
	healthFor  = time.Second     // in which an answer counts
)

// Health is whether the database has answered just now. One caller asks, and the others wait for
// that.
type Health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

// Check asks the database for a record that need not be there, unless it has answered just now.
func (h *Health) Check(ctx context.Context, client *datastore.Client) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.asked.IsZero() && time.Since(h.asked) < healthFor {
		return h.err
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime)
	defer cancel()
	err := property.IgnoreUndeclared(client.Get(asking, record.JobKey("ready"), new(record.Job)))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		err = nil
	}
	h.asked, h.err = time.Now(), err
	return err
}
