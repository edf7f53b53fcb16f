package bench

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"cloud.google.com/go/datastore"
)

const kind = "Item"

// A shape determines the keys of the entities in a benchmark.
type shape struct {
	name string

	// keys returns n keys in the order in which a job processes them.
	keys func(rng *rand.Rand, n int) []*datastore.Key

	// value returns the value of the property by which the job is sharded, for the i-th of n
	// entities. If value is nil, the job is sharded by keys.
	value func(i, n int) int64

	all bool // whether the job is over all namespaces
}

// shapes are used by default, and otherShapes only if the flag -keys names them.
var shapes, otherShapes = []shape{
	{"sequential", func(_ *rand.Rand, n int) []*datastore.Key {
		return ids(n, func(i int) int64 { return int64(i + 1) })
	}, nil, false},
	// IDs as Datastore allocates them, spread over numbers of 16 decimal digits.
	{"allocated", func(rng *rand.Rand, n int) []*datastore.Key {
		return ids(n, func(int) int64 { return 4_500_000_000_000_000 + rng.Int64N(2_000_000_000_000_000) })
	}, nil, false},
	{"mixed", func(_ *rand.Rand, n int) []*datastore.Key {
		few := min(100, n)
		keys := ids(few, func(i int) int64 { return int64(i + 1) })
		return append(keys, named(n-few, func(i int) string { return fmt.Sprintf("user-%09d", i) })...)
	}, nil, false},
	{"prefix", func(rng *rand.Rand, n int) []*datastore.Key {
		return named(n, func(i int) string {
			if i < n/10 {
				return fmt.Sprintf("%c%08x", 'a'+rng.IntN(26), rng.Uint32())
			}
			return fmt.Sprintf("customer/eu-west/%09d", i)
		})
	}, nil, false},
	{"uuid", func(rng *rand.Rand, n int) []*datastore.Key {
		return named(n, func(int) string {
			a, b := rng.Uint64(), rng.Uint64()
			return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000,
				b&0xffffffffffff)
		})
	}, nil, false},
	// IDs with 41 bits of milliseconds, 10 bits for one of 1,024 shards, and 12 bits of a counter.
	// There are more IDs at some hours of the day.
	{"time", func(rng *rand.Rand, n int) []*datastore.Key {
		now := int64(200_000_000_000)
		return ids(n, func(i int) int64 {
			if i%1000 < 900 {
				now += rng.Int64N(3)
			} else {
				now += rng.Int64N(5000)
			}
			return now<<22 | rng.Int64N(1024)<<12 | rng.Int64N(4096)
		})
	}, nil, false},
	// Two regions have most of the customers, and two of them most of the items.
	{"ancestors", func(rng *rand.Rand, n int) []*datastore.Key {
		var keys []*datastore.Key
		done := 0 // in percent
		for region, share := range []int{5, 50, 3, 40, 2} {
			parent := datastore.NameKey("Region", fmt.Sprint("r", region), nil)
			done += share
			left := n*done/100 - len(keys)
			for customer := int64(1); left > 0; customer++ {
				items := min(left, 1+rng.IntN(40))
				if customer == 7 && share >= 40 {
					items = left / 2
				}
				in := datastore.IDKey("Order", 1, datastore.IDKey("Customer", customer, parent))
				for i := range items {
					keys = append(keys, datastore.IDKey(kind, int64(i+1), in))
				}
				left -= items
			}
		}
		return keys
	}, nil, false},
}, []shape{
	// Entities to be sharded by a property. Half of its values are in the first 8% of their range.
	// Twenty entities share each value.
	{"values", func(rng *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.NameKey(kind, fmt.Sprintf("%016x-%d", rng.Uint64(), i), nil)
		}
		return keys
	}, func(i, n int) int64 {
		return int64(1e12 * math.Expm1(5*float64(i/20)/float64(n/20+1)) / math.Expm1(5))
	}, false},
	// A thousand namespaces: the first one has some 13% of the entities, the tenth 1.3%, and the
	// last 0.013%.
	{"namespaces", func(_ *rand.Rand, n int) (keys []*datastore.Key) {
		const spaces = 1000
		sum, left := 0.0, n
		for i := range spaces {
			sum += 1 / float64(i+1)
		}
		for i := range spaces {
			some := int(float64(n) / sum / float64(i+1))
			if i == spaces-1 || some > left {
				some = left
			}
			left -= some
			for id := range some {
				keys = append(keys, &datastore.Key{Kind: kind, ID: int64(id + 1),
					Namespace: fmt.Sprintf("n%03d", (i*389)%spaces)})
			}
		}
		slices.SortStableFunc(keys, func(a, b *datastore.Key) int { return cmp.Compare(a.Namespace, b.Namespace) })
		return keys
	}, nil, true},
}

// ids returns keys of n different IDs, in key order.
func ids(n int, id func(i int) int64) []*datastore.Key {
	return inOrder(n, id, func(id int64) *datastore.Key { return datastore.IDKey(kind, id, nil) })
}

// named returns keys of n different names, in key order.
func named(n int, name func(i int) string) []*datastore.Key {
	return inOrder(n, name, func(name string) *datastore.Key { return datastore.NameKey(kind, name, nil) })
}

func inOrder[T cmp.Ordered](n int, draw func(i int) T, key func(T) *datastore.Key) []*datastore.Key {
	seen := make(map[T]bool, n)
	all := make([]T, 0, n)
	for i := 0; len(all) < n; i++ {
		if x := draw(i); !seen[x] {
			seen[x] = true
			all = append(all, x)
		}
	}
	slices.Sort(all)
	keys := make([]*datastore.Key, n)
	for i, x := range all {
		keys[i] = key(x)
	}
	return keys
}
