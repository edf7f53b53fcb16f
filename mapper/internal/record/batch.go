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
// restores do not all fit in the page's commit, earlier commits restore some of them. Each of these
// is a batch.
//
// A batch's record is written in the same commit as its entities. It tells later attempts which
// entities are restored already, so they are counted once. It has the same version as these
// entities, by which an undo of the undo recognises them.
type Batch struct {
	Job         string `datastore:"job,noindex"` // the undo's ID
	Incarnation string `datastore:"incarnation,noindex"`
	// the ID of the undone job's range, whose page the batch restores
	Page     string `datastore:"page,noindex"`
	Wrote    []byte `datastore:"wrote,noindex"` // keys of the restored entities, see [undolog.Wrote]
	Restored int64  `datastore:"restored,omitempty,noindex"`
	Removed  int64  `datastore:"removed,omitempty,noindex"`
	// when a time-to-live policy may delete the record, see mapper.Job.CleanUp
	Expires time.Time `datastore:"expires,omitempty"`
}

// MaxBatchKeys is the most bytes of keys in a batch, so that its record has room for all of them.
const MaxBatchKeys = undolog.MaxKeys / 2

// NewBatch returns the key and the record of a batch. The job is the undo, and page is the ID of
// the undone job's range.
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

// BatchKey returns the key of a batch's record. The name is the ID of its page, a dot and a hash.
// With only the page's ID as the name, the key is a lower bound of the keys of the page's batches.
func BatchKey(job Ref, name string) *datastore.Key {
	return datastore.NameKey(BatchKind, RangePrefix(job)+name, nil)
}
