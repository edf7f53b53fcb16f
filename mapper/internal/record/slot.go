package record

import (
	"crypto/sha256"
	"encoding/hex"

	"cloud.google.com/go/datastore"
)

// SlotKind is the kind of the records of slots.
const SlotKind = "ScattermapSlot"

// A Slot is what a job has that runs a mapper over a kind: no other one has it before that one has
// ended.
type Slot struct {
	Mapper string `datastore:"mapper,noindex"`
	Kind   string `datastore:"kind,noindex"`
	Job    string `datastore:"job,noindex"` // that has it, or had it last,

	Incarnation string `datastore:"incarnation,noindex"` // and which of its ID
}

// SlotKey returns the key of the slot of a mapper on a kind.
func SlotKey(mapper, kind string) *datastore.Key {
	h := sha256.Sum256([]byte(mapper + "\x00" + kind))
	return datastore.NameKey(SlotKind, hex.EncodeToString(h[:16]), nil)
}
