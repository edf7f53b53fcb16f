package record

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Digest is a hash of a sequence of values, to which its methods add values. Equal values give
// equal hashes in every process, even after they were stored and read.
type Digest struct {
	hash hash.Hash
	to   *bufio.Writer // a buffer before hash; its writes never fail
}

// DigestSize is the length of a digest in bytes. A digest is the start of a SHA-256 hash, and is
// long enough to detect every accidental change.
const DigestSize = 16

// NewDigest returns a digest whose first value is the text what. The text says what is hashed, so
// that digests for different purposes differ.
func NewDigest(what string) *Digest {
	h := sha256.New()
	d := &Digest{h, bufio.NewWriterSize(h, 512)}
	d.text(what)
	return d
}

// Sum returns the hash of all values that were added. The Digest can't be used after that.
func (d *Digest) Sum() []byte {
	_ = d.to.Flush()
	return d.hash.Sum(nil)[:DigestSize]
}

// Number returns the hash of all values as a number, so that hashes can be added up. The Digest
// can't be used after that.
func (d *Digest) Number() tally.Sum { return tally.SumOf(d.Sum()) }

func (d *Digest) text(s string) {
	_, _ = d.to.Write(binary.AppendUvarint(d.to.AvailableBuffer(), uint64(len(s))))
	_, _ = d.to.WriteString(s)
}

func (d *Digest) integer(n int64) {
	_, _ = d.to.Write(binary.AppendVarint(d.to.AvailableBuffer(), n))
}

func (d *Digest) flag(b bool) { d.integer(int64(keyspace.Present(b))) }

func (d *Digest) time(t time.Time) {
	d.flag(t.IsZero())
	d.integer(t.UnixMicro())
}

// Key adds a key to the digest.
func (d *Digest) Key(k *datastore.Key) {
	if k == nil {
		d.integer(0)
		return
	}
	n := int64(0)
	for e := k; e != nil; e = e.Parent {
		n++
	}
	d.integer(n)
	d.text(k.Namespace)
	d.path(k)
}

// path adds the kind and the name or ID of a key and of its ancestors, from the root to the key.
func (d *Digest) path(k *datastore.Key) {
	if k.Parent != nil {
		d.path(k.Parent)
	}
	d.text(k.Kind)
	d.text(k.Name)
	d.integer(k.ID)
}

// Position adds a position to the digest.
func (d *Digest) Position(p *keyspace.Position) {
	d.flag(p != nil)
	if p == nil {
		return
	}
	s := p.Space()
	d.text(s.Namespace)
	d.text(s.Kind)
	d.Key(p.Key)
	if d.flag(p.Valued); p.Valued {
		d.value(p.Value)
	}
}

// value adds a value of the property in mapper.Query.ShardBy.
func (d *Digest) value(v any) {
	d.integer(int64(value.Rank(v)))
	switch v := v.(type) {
	case int64, time.Time:
		d.integer(value.IntegerOf(v))
	case bool:
		d.flag(v)
	case string, []byte:
		d.text(string(value.BytesOf(v)))
	case float64:
		d.integer(int64(value.FloatBits(v)))
	case datastore.GeoPoint:
		d.integer(int64(math.Float64bits(v.Lat)))
		d.integer(int64(math.Float64bits(v.Lng)))
	case *datastore.Key:
		d.Key(v)
	}
}

// SingleSum returns a hash of the range's ID and its single entity, as a number. The record of the
// parent has the sum of these numbers over its single-entity children (Range.Single), to find
// missing ones.
func (r *Range) SingleSum() tally.Sum {
	d := NewDigest("single")
	d.text(r.ID)
	d.Position(r.Start)
	return d.Number()
}

// PageDigest is the first value of each digest of a page's keys, see [NewDigest].
const PageDigest = "page 1"

// KeysDigest returns the hash of the keys of a page's entities, in the given order.
func KeysDigest(at []*keyspace.Position) []byte {
	d := NewDigest(PageDigest)
	for _, p := range at {
		d.Key(p.Key)
	}
	return d.Sum()
}

// Digest returns the seal of a range that is done: a hash of its start, its end and its results. If
// a later digest differs from the stored seal, the record was changed.
func (r *Range) Digest() []byte {
	d := NewDigest("range 1")
	d.text(r.Ref().String())
	d.text(r.ID)
	d.Position(r.Start)
	d.Position(r.End)
	for _, s := range []string{string(r.State), r.Namespace, r.Kind, r.Failed, r.Error, string(r.Keys),
		string(r.Counters),
		string(r.Single)} {
		d.text(s)
	}
	for _, n := range []int64{r.Depth, r.Children, r.Retries, r.Recorded, r.Refusals, r.Entities, r.Processed,
		r.Unsharded} {
		d.integer(n)
	}
	for _, b := range []bool{r.Alone, r.Continued, r.Full} {
		d.flag(b)
	}
	d.time(r.Created)
	d.time(r.Done)
	// If Written is 0, it is left out. Older builds had no such field, so they sealed records
	// without it.
	if r.Written != 0 {
		d.text("written")
		d.integer(r.Written)
	}
	return d.Sum()
}
