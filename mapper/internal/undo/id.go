package undo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// ID returns the default ID of a job's undo: "undo-" and the job's ID. If another job or an aborted
// undo has this ID, it appends a part of the incarnation and a number.
func ID(ctx context.Context, st store.Store, job *record.Job, params json.RawMessage) (string, error) {
	const prefix, most, tries = "undo-", 100, 20
	id := prefix + job.ID
	if len(id) > most-24 {
		h := sha256.Sum256([]byte(job.ID))
		id = id[:most-24-9] + "-" + hex.EncodeToString(h[:4])
	}
	for n := range tries {
		some := id
		if n > 0 {
			some = fmt.Sprintf("%s-%s-%d", id, job.Incarnation[:8], n)
		}
		other, err := st.LoadJob(ctx, record.Ref{ID: some})
		switch {
		case errors.Is(err, record.ErrNoSuchJob):
			return some, nil
		case err != nil:
			return "", err
		case other.Mapper == Name(job.Mapper) && bytes.Equal(other.Params, params) && other.State != record.Aborted:
			return some, nil
		}
	}
	return "", fmt.Errorf("%w: %d jobs have the default IDs of its undo: give the undo another ID", record.ErrState,
		tries)
}
