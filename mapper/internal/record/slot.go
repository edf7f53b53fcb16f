package record

import (
	"crypto/sha256"
	"encoding/hex"

	"cloud.google.com/go/datastore"
)

// SlotKind is the kind of the records of slots, which are locks, see [Slot].
const SlotKind = "ScattermapSlot"

// A Slot is a lock on a mapper and a kind. A job holds it from its start to its end, so that only
// one job of this mapper processes this kind at a time.
type Slot struct {
	Mapper string `datastore:"mapper,noindex"`
	Kind   string `datastore:"kind,noindex"`
	Job    string `datastore:"job,noindex"` // the ID of the job that holds the lock, or held it last

	Incarnation string `datastore:"incarnation,noindex"` // that job's incarnation
}

// SlotKey returns the key of the [Slot] (a lock) of a mapper and a kind.
func SlotKey(mapper, kind string) *datastore.Key {
	h := sha256.Sum256([]byte(mapper + "\x00" + kind))
	return datastore.NameKey(SlotKind, hex.EncodeToString(h[:16]), nil)
}
