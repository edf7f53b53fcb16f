package undolog

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Wrote says which entities the commit of a page wrote. It is stored in the page's record, from
// which an undo of the job reads it.
//
// For the page's own entities it has only hashes of keys, because the undo finds these entities by
// the job's query. The entities that the commit changed have the same version in the database as
// this record. If the commit wrote an entity without changing it, the entity keeps its old version.
type Wrote struct {
	Own     Keys  // the page's own entities that were written
	Written int64 // number of entities in Own
	Gone    Keys  // entities in Own that were deleted
	// Fresh are the entities in Own that other clients may have changed shortly before the commit,
	// after Settled.
	Fresh   Keys
	Settled time.Time // two minutes before the commit, by the clock of its process

	Others []*datastore.Key // other entities that the function put or deleted
	Lost   int64            // number of other entities that were left out, because Others was too large
}

// Keys is a set of entities of a page: either all of them, or the ones whose keys have the given
// hashes.
type Keys struct {
	All    bool   `json:"all,omitempty"`
	Hashes []byte `json:"hashes,omitempty"`
}

// KeysOf returns the set of the entities with these keys. The argument all says that the page has
// no other entities.
func KeysOf(keys []*datastore.Key, all bool) (k Keys) {
	if all && len(keys) > 0 {
		return Keys{All: true}
	}
	for _, key := range keys {
		k.Hashes = append(k.Hashes, keyHash(key)...)
	}
	return k
}

// Has reports whether the set contains the entity with a key. It must be an entity of the page,
// because the short hashes are unique only within a page.
func (k Keys) Has(key *datastore.Key) bool {
	if k.All {
		return true
	}
	h := keyHash(key)
	for some := range slices.Chunk(k.Hashes, hashBytes) {
		if slices.Equal(some, h) {
			return true
		}
	}
	return false
}

// Any reports whether the set contains at least one entity.
func (k Keys) Any() bool { return k.All || len(k.Hashes) > 0 }

// A Left is an entity that an undo did not restore, with the reason.
type Left struct {
	Key *datastore.Key
	Why string
}

// MaxKeys is the largest size of the compressed keys in a record, in bytes. A clean-up writes fifty
// such records in one commit, and a commit may have at most 10 MiB.
const MaxKeys = 80 << 10

// hashBytes is the size in bytes of the hash that identifies an entity among the entities of its
// page. About one comparison in four billion is wrong: the entity then counts as written, but was
// not.
const hashBytes = 4

func keyHash(key *datastore.Key) []byte {
	h := sha256.Sum256([]byte(key.Encode()))
	return h[:hashBytes]
}

// storedWrote is the stored JSON form of a Wrote.
type storedWrote struct {
	Own     Keys       `json:"own,omitzero"`
	Written int64      `json:"written,omitempty"`
	Gone    Keys       `json:"gone,omitzero"`
	Fresh   Keys       `json:"fresh,omitzero"`
	Settled int64      `json:"settled,omitempty"` // microseconds since 1970
	Others  [][]string `json:"others,omitempty"`
	Lost    int64      `json:"lost,omitempty"`
}

// Encode returns the stored form of a Wrote. If it would be larger than MaxKeys, Encode leaves out
// some keys of Others and counts them in Lost.
func (w *Wrote) Encode() []byte {
	s := storedWrote{w.Own, w.Written, w.Gone, w.Fresh, w.Settled.UnixMicro(), paths(w.Others), w.Lost}
	return compressed(&s, func() bool {
		n := len(s.Others)
		s.Others, s.Lost = s.Others[:n/2], s.Lost+int64(n-n/2)
		return n > 0
	})
}

// Decode returns the Wrote with the given stored form. It returns nil if stored is empty, because
// records of older builds have no Wrote.
func Decode(stored []byte) (*Wrote, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	var s storedWrote
	if err := decode(stored, &s); err != nil {
		return nil, fmt.Errorf("what a page has written: %w", err)
	}
	w := &Wrote{Own: s.Own, Written: s.Written, Gone: s.Gone, Fresh: s.Fresh, Settled: time.UnixMicro(s.Settled),
		Lost: s.Lost}
	var err error
	w.Others, err = keysOf(s.Others)
	return w, err
}

// storedLeft is the stored JSON form of a list of [Left].
type storedLeft struct {
	All  []storedLeaf `json:"all"`
	Lost int64        `json:"lost,omitempty"`
}

type storedLeaf struct {
	Key []string `json:"key"`
	Why string   `json:"why"`
}

// EncodeLeft returns the stored form of the entities that a page of an undo did not restore. If it
// would be larger than MaxKeys, EncodeLeft leaves out some entities and counts them.
func EncodeLeft(all []Left) []byte {
	var s storedLeft
	for _, l := range all {
		s.All = append(s.All, storedLeaf{path(l.Key), l.Why})
	}
	return compressed(&s, func() bool {
		n := len(s.All)
		s.All, s.Lost = s.All[:n/2], s.Lost+int64(n-n/2)
		return true // true because an empty list fits
	})
}

// DecodeLeft returns the entities from their stored form. The number lost counts the entities that
// EncodeLeft has left out.
func DecodeLeft(stored []byte) (all []Left, lost int64, err error) {
	var s storedLeft
	if err := decode(stored, &s); err != nil {
		return nil, 0, fmt.Errorf("what a page has left: %w", err)
	}
	for _, leaf := range s.All {
		l := Left{Why: leaf.Why}
		if len(leaf.Key) > 0 {
			if l.Key, err = keyOf(leaf.Key); err != nil {
				return nil, 0, err
			}
		}
		all = append(all, l)
	}
	return all, s.Lost, nil
}

// compressed returns v, which contains a list, as compressed JSON of at most MaxKeys bytes. While
// the JSON is larger, it calls halve to drop half of the list. If halve returns false because the
// list is empty, the result may be larger.
func compressed(v any, halve func() bool) []byte {
	for {
		text, err := json.Marshal(v)
		if err != nil {
			panic("undolog: a struct of strings and numbers does not encode: " + err.Error())
		}
		b := text
		if len(text) > 256 { // compressing a shorter text saves nothing
			b = tally.Compress(text)
		}
		if len(b) <= MaxKeys || !halve() {
			return b
		}
	}
}

func decode(stored []byte, v any) error {
	text, err := tally.Unpack(stored)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// path returns a key as a list of texts: its namespace, then the kind and the name or ID of each
// element, from the root to the last one. A name has the prefix "n", and an ID the prefix "i". For
// example: "", "Order", "i5", "Item", "nbook".
func path(key *datastore.Key) []string {
	if key == nil {
		return nil
	}
	var reversed []string
	for k := key; k != nil; k = k.Parent {
		last := "n" + k.Name
		if k.Name == "" {
			last = "i" + strconv.FormatInt(k.ID, 10)
		}
		reversed = append(reversed, last, k.Kind)
	}
	reversed = append(reversed, key.Namespace)
	slices.Reverse(reversed)
	return reversed
}

func paths(keys []*datastore.Key) (all [][]string) {
	for _, key := range keys {
		all = append(all, path(key))
	}
	return all
}

var errPath = errors.New("a stored key can't be read")

// keyOf returns the key of a path, which the function path has made.
func keyOf(path []string) (key *datastore.Key, err error) {
	if len(path) < 3 || len(path)%2 == 0 {
		return nil, errPath
	}
	for pair := range slices.Chunk(path[1:], 2) {
		k := &datastore.Key{Kind: pair[0], Parent: key, Namespace: path[0]}
		switch last := pair[1]; {
		case len(last) > 1 && last[0] == 'n':
			k.Name = last[1:]
		case strings.HasPrefix(last, "i"):
			if k.ID, err = strconv.ParseInt(last[1:], 10, 64); err != nil {
				return nil, fmt.Errorf("%w: %w", errPath, err)
			}
		default:
			return nil, errPath
		}
		key = k
	}
	return key, nil
}

func keysOf(paths [][]string) (keys []*datastore.Key, err error) {
	for _, path := range paths {
		key, err := keyOf(path)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}
