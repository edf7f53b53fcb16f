package record

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// BatchKind is the kind of the records of undo batches.
const BatchKind = "ScattermapUndoBatch"

// A Batch is the record of an extra commit of an undo. If the entities that a page of the undo
// restores don't fit in its commit, some of them are restored before it in other commits, the
// batches.
//
// Each batch writes its record in the same commit. So another attempt knows which entities are
// restored, and counts them once. An undo of the undo finds them: every entity that the commit
// wrote has the version of this record.
type Batch struct {
	Job         string    `datastore:"job,noindex"` // the undo's ID
	Incarnation string    `datastore:"incarnation,noindex"`
	Page        string    `datastore:"page,noindex"`  // ID of the page that is undone; a range of the undone job
	Wrote       []byte    `datastore:"wrote,noindex"` // keys of the restored entities, see [undolog.Wrote]
	Restored    int64     `datastore:"restored,omitempty,noindex"`
	Removed     int64     `datastore:"removed,omitempty,noindex"`
	Expires     time.Time `datastore:"expires,omitempty"` // for a time-to-live policy, see mapper.Job.CleanUp
}

// MaxBatchKeys is the most bytes of keys in a batch, so that its record has room for all of them.
const MaxBatchKeys = undolog.MaxKeys / 2

// NewBatch returns the record of a batch, and its key. The job is the undo; page is a range of the
// job that it undoes.
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

// BatchKey returns the key of a batch's record. The name is the ID of its page, a dot and a hash. A
// page's ID alone gives a bound of the keys of its batches.
func BatchKey(job Ref, name string) *datastore.Key {
	return datastore.NameKey(BatchKind, RangePrefix(job)+name, nil)
}
