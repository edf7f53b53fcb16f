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
	healthTime = 2 * time.Second // the database must answer within this time
	healthFor  = time.Second     // an answer counts for this time
)

// Health caches whether the database answers. One caller asks the database, and the others wait for
// its answer.
type Health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

// Check reads a record that need not exist, unless the database was asked within healthFor.
func (h *Health) Check(ctx context.Context, client *datastore.Client) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < healthFor {
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
