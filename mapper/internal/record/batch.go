package record

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// BatchKind is the kind of the records of an undo's batches, see [Batch].
const BatchKind = "ScattermapUndoBatch"

// A Batch is the record of an extra commit of an undo. An undo restores a page of entities of the
// undone job. If they do not all fit in one commit, earlier commits restore some of them. Each of
// these commits is a batch.
//
// The record is written in the same commit as the batch's entities. It tells later attempts which
// entities are already restored, so that they are counted once. It has the same version in the
// database as these entities. By this version, an undo of the undo recognizes them.
type Batch struct {
	Job         string `datastore:"job,noindex"` // the undo's ID
	Incarnation string `datastore:"incarnation,noindex"`
	// the ID of the range of the undone job whose page is restored
	Page     string `datastore:"page,noindex"`
	Wrote    []byte `datastore:"wrote,noindex"` // keys of the restored entities, see [undolog.Wrote]
	Restored int64  `datastore:"restored,omitempty,noindex"`
	Removed  int64  `datastore:"removed,omitempty,noindex"`
	// when a time-to-live policy may delete the record, see mapper.Job.CleanUp
	Expires time.Time `datastore:"expires,omitempty"`
}

// MaxBatchKeys is the largest size in bytes of all keys in one batch. With it, the keys fit in the
// batch's record.
const MaxBatchKeys = undolog.MaxKeys / 2

// NewBatch returns the key and the record of a batch of the undo job. The argument page is the ID
// of the range whose page is restored. The batch has restored and removed these numbers of
// entities.
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

// BatchKey returns the key of a batch's record. Its name is the ID of the restored page's range, a
// dot and a hash. If the name is only the range's ID, the key sorts before the keys of all batches
// of this page.
func BatchKey(job Ref, name string) *datastore.Key {
	return datastore.NameKey(BatchKind, RangePrefix(job)+name, nil)
}
