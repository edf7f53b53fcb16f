// Package keytest makes random keys for tests. They have all forms that Datastore allows, and many
// are neighbours in Datastore's order.
package keytest

import (
	"math"
	"math/rand/v2"
	"strings"

	"cloud.google.com/go/datastore"
)

// Options limit which keys [Random] makes.
type Options struct {
	Kind      string // the kind of every key
	Namespace string
	// BasicPlane leaves out characters above U+FFFF. Google's classic emulator sorts them by
	// UTF-16, and production by UTF-8.
	BasicPlane bool
}

// Random returns n different keys.
func Random(rng *rand.Rand, n int, o Options) []*datastore.Key {
	keys := make([]*datastore.Key, 0, n)
	seen := make(map[string]bool)
	for len(keys) < n {
		var parent *datastore.Key
		for range max(0, rng.IntN(10)-4) { // half of the keys have no ancestors, some have five
			kind := o.Kind
			if i := rng.IntN(len(kinds) + 2); i < len(kinds) {
				kind = kinds[i]
			}
			parent = element(rng, kind, parent, o)
		}
		key := element(rng, o.Kind, parent, o)
		if id := key.Encode(); !seen[id] {
			seen[id] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// kinds has the kinds of the keys' ancestors. In Datastore's order, some are before and some after
// the kinds that tests use.
var kinds = []string{"A", "AA", "A\x00", "A\x01", "a", "Z", "é", "\uffff"}

func element(rng *rand.Rand, kind string, parent *datastore.Key, o Options) *datastore.Key {
	key := &datastore.Key{Kind: kind, Parent: parent, Namespace: o.Namespace}
	if rng.IntN(2) == 0 {
		key.ID = id(rng)
	} else {
		key.Name = name(rng, o)
	}
	return key
}

func id(rng *rand.Rand) int64 {
	special := []int64{1, 2, 3, -1, -2, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1, 1 << 32,
		1<<53 + 1}
	if rng.IntN(3) == 0 {
		return special[rng.IntN(len(special))]
	}
	if id := int64(rng.Uint64()) >> rng.IntN(64); id != 0 {
		return id
	}
	return 7
}

var alphabet = []rune("\x00\x01\x7f019aAbz_-./,\" " +
	"é\u0080\u07ff\u0800\ud7ff\ue000\ufffd\uffff\U00010000\U0001F600\U0010FFFF")

func name(rng *rand.Rand, o Options) string {
	runes := alphabet
	if o.BasicPlane {
		runes = runes[:len(runes)-3]
	}
	var b strings.Builder
	length := 1 + rng.IntN(4)
	if rng.IntN(20) == 0 {
		length = 1 + rng.IntN(200)
	}
	for range length {
		b.WriteRune(runes[rng.IntN(len(runes))])
	}
	if s := b.String(); !strings.HasPrefix(s, "__") {
		return s
	}
	return "__" // only two underscores: this is not a reserved name
}
