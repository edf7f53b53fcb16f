package record

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// BatchKind is the kind of the records of batches.
const BatchKind = "ScattermapUndoBatch"

// A Batch is what a page of an undo has restored by a commit of its own, before that of the page,
// which can't hold it all. The record is written by that commit. So another attempt knows what was
// restored and counts it once, and the undo of the undo finds it: all that the commit has written
// has the version of the record.
type Batch struct {
	Job         string    `datastore:"job,noindex"` // the undo,
	Incarnation string    `datastore:"incarnation,noindex"`
	Page        string    `datastore:"page,noindex"`  // the range that it undoes, of the job that it undoes,
	Wrote       []byte    `datastore:"wrote,noindex"` // and of that the entities, see [undolog.Wrote]
	Restored    int64     `datastore:"restored,omitempty,noindex"`
	Removed     int64     `datastore:"removed,omitempty,noindex"`
	Expires     time.Time `datastore:"expires,omitempty"` // for a time-to-live policy, see mapper.Job.CleanUp
}

// MaxBatchKeys is how many bytes of keys a batch may have, so that its record has room for all of
// them.
const MaxBatchKeys = undolog.MaxKeys / 2

// NewBatch returns the record of a batch that a job has on a page, and its key.
func NewBatch(job Ref, page string, keys []*datastore.Key, restored, removed int64) (*datastore.Key, *Batch) {
	h := sha256.New()
	for _, key := range keys {
		h.Write([]byte(key.Encode() + "\n"))
	}
	w := undolog.Wrote{Others: keys}
	b := &Batch{Job: job.ID, Incarnation: job.Incarnation, Page: page, Wrote: w.Encode(), Restored: restored,
		Removed: removed}
	return BatchKey(job, page+"."+hex.EncodeToString(h.Sum(nil)[:16])), b
}

// BatchKey returns the key of the record of a batch, or a bound of such keys: the name begins with
// the ID of the page.
func BatchKey(job Ref, name string) *datastore.Key {
	return datastore.NameKey(BatchKind, RangePrefix(job)+name, nil)
}
