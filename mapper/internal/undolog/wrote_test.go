package undolog

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below mapper/ must know its flags
)

// keysOfAllSorts returns keys of all forms: with IDs, names, parents and namespaces.
func keysOfAllSorts() []*datastore.Key {
	parent := datastore.NameKey("P", "i7", nil)
	spaced := datastore.NameKey("K", "n", nil)
	spaced.Namespace = "tenant"
	return []*datastore.Key{
		datastore.IDKey("K", 7, nil), datastore.NameKey("K", "x", nil), datastore.NameKey("K", "i", parent), spaced,
		datastore.IDKey("K", -1, parent),
	}
}

// TestWroteAgain encodes a Wrote, and checks that decoding gives an equal one.
func TestWroteAgain(t *testing.T) {
	all := keysOfAllSorts()
	w := &Wrote{
		Own: KeysOf(all, true), Written: 5, Gone: KeysOf(all[:2], false), Fresh: KeysOf(all[1:3], false),
		Settled: time.UnixMicro(1e15), Others: all, Lost: 3,
	}
	got, err := Decode(w.Encode())
	if err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("%+v, %v, want %+v", got, err, w)
	}
	if !got.Own.Has(all[0]) || got.Gone.Has(all[2]) || !got.Gone.Has(all[1]) ||
		got.Fresh.Has(all[0]) || !got.Fresh.Has(all[2]) {
		t.Errorf("other keys: %+v", got)
	}
	if none := KeysOf(nil, true); none.Any() || KeysOf(nil, false).Any() ||
		!KeysOf(all[:1], false).Any() || !got.Own.Any() {
		t.Errorf("%+v", none)
	}
	if got, err := Decode(nil); got != nil || err != nil {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
}

// long returns n keys with random names, which can't be compressed.
func long(n int) (all []*datastore.Key) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range n {
		var name strings.Builder
		for range 60 {
			fmt.Fprintf(&name, "%x", rng.Uint32())
		}
		all = append(all, datastore.NameKey("K", name.String(), nil))
	}
	return all
}

// TestNoRoom checks that keys which do not fit are counted as lost, and that the others are kept.
func TestNoRoom(t *testing.T) {
	all := long(2000)
	w := &Wrote{Others: all, Lost: 1}
	stored := w.Encode()
	got, err := Decode(stored)
	if err != nil || len(stored) > MaxKeys || len(got.Others) == 0 || len(got.Others)+int(got.Lost) != len(all)+1 {
		t.Fatalf("%d bytes, %d others and %d lost, %v", len(stored), len(got.Others), got.Lost, err)
	}
	left := make([]Left, len(all))
	for i, key := range all {
		left[i] = Left{Key: key, Why: "it was changed since"}
	}
	stored = EncodeLeft(left)
	some, lost, err := DecodeLeft(stored)
	if err != nil || len(stored) > MaxKeys || len(some) == 0 || len(some)+int(lost) != len(all) {
		t.Fatalf("%d bytes, %d left and %d lost, %v", len(stored), len(some), lost, err)
	}
	if !some[0].Key.Equal(all[0]) || some[0].Why != left[0].Why {
		t.Errorf("%+v, want %+v", some[0], left[0])
	}
}

// TestRoom checks that keys are dropped only if they do not fit, and that hashes are never dropped.
func TestRoom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	name := make([]byte, 4*MaxKeys) // random hexadecimal digits, which compress to half a byte each
	for i := range name {
		name[i] = "0123456789abcdef"[rng.IntN(16)]
	}
	size := func(n int) (size int, whole bool) {
		w := &Wrote{Others: []*datastore.Key{datastore.NameKey("K", string(name[:n]), nil)}}
		stored := w.Encode()
		got, err := Decode(stored)
		if err != nil {
			t.Fatal(err)
		}
		return len(stored), len(got.Others) == 1
	}
	fits := sort.Search(len(name), func(n int) bool { _, whole := size(n); return !whole }) - 1
	if n, _ := size(fits); n != MaxKeys {
		t.Errorf("a list of %d bytes fits, and a longer one does not", n)
	}
	// repeated text, which fits after compression
	alike := []*datastore.Key{datastore.NameKey("K", strings.Repeat("alike", MaxKeys), nil)}
	if got, err := Decode((&Wrote{Others: alike}).Encode()); err != nil || len(got.Others) != 1 {
		t.Errorf("a list that can be compressed: %d, %v", len(got.Others), err)
	}
	w := &Wrote{Own: Keys{Hashes: name[:2*MaxKeys]}, Others: keysOfAllSorts()}
	got, err := Decode(w.Encode())
	if err != nil || !slices.Equal(got.Own.Hashes, w.Own.Hashes) || len(got.Others) != 0 || got.Lost != 5 {
		t.Errorf("many hashes: %d bytes, %d others and %d lost, %v", len(got.Own.Hashes), len(got.Others), got.Lost,
			err)
	}
}

// TestLeftAgain encodes entities that an undo did not restore, and checks that decoding gives the
// same. One of them has a reason, but no key.
func TestLeftAgain(t *testing.T) {
	want := []Left{{keysOfAllSorts()[3], "it was deleted since"}, {nil, "there was no room"}}
	if got, lost, err := DecodeLeft(EncodeLeft(want)); err != nil || lost != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %d, %v, want %+v", got, lost, err, want)
	}
}

// TestDamagedKeys checks that decoding damaged keys returns an error, in every field that has keys.
func TestDamagedKeys(t *testing.T) {
	for _, path := range []string{
		`[""]`, `["", "K"]`, `["", "K", "n"]`, `["", "K", "i"]`, `["", "K", ""]`, `["", "K", "x7"]`, `["", "K", "i7x"]`,
		`["", "K", "n1", "L"]`,
		`["", "K", "i99999999999999999999"]`, `["", "K", "n1", "L", "7"]`,
	} {
		if got, err := Decode([]byte(`{"others": [` + path + `]}`)); err == nil {
			t.Errorf("%s: %v", path, got.Others)
		}
		if got, _, err := DecodeLeft([]byte(`{"all": [{"key": ` + path + `, "why": "w"}]}`)); err == nil {
			t.Errorf("%s: %v", path, got)
		}
	}
	if _, err := Decode([]byte("\x00x")); err == nil || !strings.Contains(err.Error(), "compressed") {
		t.Errorf("a damaged compressed text: %v", err)
	}
	for _, text := range []string{`{"all": 7}`, `{`, "\x1f\x8b"} {
		if got, _, err := DecodeLeft([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, got)
		}
		if got, err := Decode([]byte(strings.Replace(text, "all", "others", 1))); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
