package record

import (
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestSealsOfOlderBuilds checks that all builds calculate the same seals and digests for the same
// record. A job that an older build has started has records with that build's seals.
func TestSealsOfOlderBuilds(t *testing.T) {
	order := datastore.NameKey("Order", "o-1", datastore.IDKey("Account", 7, nil))
	order.Namespace, order.Parent.Namespace = "eu", "eu"
	long := keyspace.At(datastore.NameKey("K", strings.Repeat("long", 1500), nil))
	var empty Range
	full := Range{Job: "j", Incarnation: "i", ID: "r", State: Done, Start: at(10),
		End: &keyspace.Position{Namespace: "eu", Kind: "Order", Valued: true, Value: 2.5, Key: order}, Namespace: "eu",
		Kind: "Order", Failed: "j", Error: "no", Keys: []byte("k"), Counters: []byte("{}"), Single: []byte("s"),
		Depth: 1, Children: 2, Retries: 3, Recorded: 4, Refusals: 5, Entities: 6, Processed: 7, Unsharded: 8,
		Alone: true, Full: true, Created: rounded, Done: rounded.Add(time.Hour)}
	written := full
	written.Written = 9
	single := full.SingleSum()
	for what, c := range map[string]struct {
		digest []byte
		want   string
	}{
		"an empty record":                  {empty.Digest(), "ca394682b0c6e49427c783a8d7133eb6"},
		"a record":                         {full.Digest(), "2b280dad3d50757e9c0fa581f8cad0df"},
		"a record that counts what it put": {written.Digest(), "92a21f125d659b086b8bf199fa2b81f2"},
		"the keys of a page": {KeysDigest([]*keyspace.Position{at(1), keyspace.At(order), long, {}}),
			"4257e58e6ca6de137328c34882538e5f"},
		"a single entity": {single.Bytes(), "aaeaea275ac6dab7904a21b6ed14deb9"},
	} {
		if got := hex.EncodeToString(c.digest); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// TestSealed checks which fields of a record are in its seal: the ones that say what the range was,
// and what its page did. The other fields only control the work.
func TestSealed(t *testing.T) {
	sealed := strings.Fields("Job Incarnation ID Failed State Depth Start End Namespace Kind Alone Refusals Children " +
		"Continued Retries Recorded Single Entities Keys Processed Written Full Unsharded Counters Error Created Done")
	var filled Range
	fill(reflect.ValueOf(&filled).Elem())
	before := string(filled.Digest())
	for i, field := range reflect.VisibleFields(reflect.TypeFor[Range]()) {
		changed := filled
		switch f := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index); f.Interface().(type) {
		case RangeState, string:
			f.SetString("y")
		case bool:
			f.SetBool(false)
		case int64, time.Duration:
			f.SetInt(2)
		case time.Time:
			f.Set(reflect.ValueOf(time.Unix(1, 1000)))
		case *keyspace.Position:
			f.Set(reflect.ValueOf(at(1)))
		default:
			f.SetZero()
		}
		if seals := string(changed.Digest()) != before; seals != slices.Contains(sealed, field.Name) {
			t.Errorf("field %d, %s: sealed %v", i, field.Name, seals)
		}
	}
}

// TestDigestsDiffer checks that different positions have different digests. A position that was
// stored and read back must have the same digest as before.
func TestDigestsDiffer(t *testing.T) {
	valued := func(v any) *keyspace.Position {
		return &keyspace.Position{Valued: true, Value: v, Key: datastore.IDKey("K", 1, nil)}
	}
	spaced := func(namespace, kind string) *keyspace.Position {
		return &keyspace.Position{Namespace: namespace, Kind: kind, Key: datastore.IDKey("K", 1, nil)}
	}
	in := func(namespace string) *keyspace.Position {
		k := datastore.IDKey("K", 1, nil)
		k.Namespace = namespace
		return keyspace.At(k)
	}
	parent := datastore.IDKey("P", 1, nil)
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	all := []*keyspace.Position{
		nil, {}, at(1), at(2), keyspace.At(datastore.NameKey("K", "1", nil)), keyspace.At(datastore.IDKey("L", 1, nil)),
		keyspace.At(datastore.IDKey("K", 1, parent)), in("a"), in("b"),
		keyspace.At(datastore.IDKey("K", 1, datastore.IDKey("P", 2, nil))),
		keyspace.At(datastore.IDKey("K", 1, datastore.IDKey("P", 1, parent))),
		spaced("", "L"), spaced("a", "L"), spaced("a", "K"),
		valued(nil), valued(int64(1)), valued(int64(2)), valued(noon), valued(noon.Add(time.Microsecond)),
		valued(true), valued(false), valued("1"), valued("true"), valued(1.0), valued(1.5), valued(0.0),
		valued(datastore.GeoPoint{Lat: 1, Lng: 2}), valued(datastore.GeoPoint{Lat: 2, Lng: 2}),
		valued(datastore.GeoPoint{Lat: 1, Lng: 1}), valued(parent), valued(datastore.IDKey("P", 2, nil)),
	}
	digest := func(p *keyspace.Position) string {
		d := NewDigest("position")
		d.Position(p)
		return string(d.Sum())
	}
	of := make(map[string]int)
	for i, p := range all {
		if other, known := of[digest(p)]; known {
			t.Errorf("positions %d and %d have the same digest: %+v", i, other, p)
		}
		of[digest(p)] = i
	}
	for name, same := range map[string][2]*keyspace.Position{
		"a time is a number of microseconds": {valued(noon), valued(noon.UnixMicro())},
		"a text is a number of bytes":        {valued("1"), valued([]byte("1"))},
		"a position has the space of its key": {
			at(1), {Kind: "K", Key: datastore.IDKey("K", 1, nil)}},
	} {
		if digest(same[0]) != digest(same[1]) {
			t.Errorf("%s: the digests differ", name)
		}
	}
}
