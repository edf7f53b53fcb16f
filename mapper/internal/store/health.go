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
	healthTime = 2 * time.Second // how long a check waits for the database's answer
	healthFor  = time.Second     // how long the result of a check is valid
)

// A Health checks whether the database answers, and caches the result. If there are several callers
// at the same time, one of them asks the database, and the others wait for its result.
type Health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

// Check reads a record from the database, and returns an error if that fails. The record need not
// exist. If the last check is less than healthFor ago, Check returns its result.
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
