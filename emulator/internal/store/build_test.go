package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/internal/testflag"
)

func keyOf(id int64) model.Key {
	path := []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: id}}}
	return model.Key{Kind: "K", Path: string(collate.AppendPath(nil, path)), PB: &pb.Key{Path: path}}
}

// put puts an entity with some random values, or deletes it.
func put(t *testing.T, k *Kind, rng *rand.Rand, id, at int64) *Record {
	t.Helper()
	f, err := entity.New(keyOf(id).PB)
	if err != nil {
		t.Fatal(err)
	}
	deleted := rng.IntN(5) == 0
	if !deleted {
		var list []*pb.Value
		for range 1 + rng.IntN(3) {
			list = append(list, entity.Integer(rng.Int64N(5)))
		}
		if f, err = f.With(map[string]*pb.Value{"a": entity.Array(list),
			"b": entity.Integer(rng.Int64N(5))}); err != nil {
			t.Fatal(err)
		}
	}
	return k.Put(keyOf(id), Version{At: at, Created: at, Form: f, Deleted: deleted}, 2)
}

// dump returns all entries of an index.
func (idx *index) dump() (all []string) {
	idx.entries.Scan(func(key string, e entry) bool {
		all = append(all, fmt.Sprintf("%x %x %d", key, e.record.Path, e.versions))
		return true
	})
	return all
}

// TestBuildBesideWrites builds an index while entities are put, deleted and pruned at random. It
// checks that the index equals one that existed before, and one that is built afterwards.
func TestBuildBesideWrites(t *testing.T) {
	rng := testflag.Rand(t)
	d := Definition{{Property: "a"}, {Property: "b", Descending: true}}
	for range 5 {
		var totals, others Totals
		k, whole := NewKind("K", &totals), NewKind("K", &others)
		whole.Entries(d) // this index exists from the start, and is never dropped
		seed, at := rng.Uint64(), int64(0)
		mine, theirs := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 0))
		type written struct{ a, b *Record }
		var log []written
		change := func() {
			at++
			if id := rng.Int64N(2000); rng.IntN(4) > 0 || len(log) == 0 {
				if _, known := k.Records.Get(keyOf(id).Path); known || rng.IntN(3) > 0 {
					log = append(log, written{put(t, k, mine, id, at), put(t, whole, theirs, id, at)})
				}
				return
			}
			w, horizon := log[rng.IntN(len(log))], rng.Int64N(at)
			if a, b := k.Prune(w.a, horizon), whole.Prune(w.b, horizon); a != b {
				t.Fatalf("%d and %d were pruned", a, b)
			}
		}
		for range 3000 {
			change()
		}
		b := k.Build(d)
		for chunks := 0; b.Next(); chunks++ {
			for range rng.IntN(80) {
				change()
			}
			b.Work(func() {})
			if chunks < 40 {
				for range rng.IntN(80) {
					change()
				}
			}
		}
		select {
		case <-b.Done:
		default:
			t.Fatal("the channel Done of the build is not closed")
		}
		k.Hold(d)
		again := NewKind("K", new(Totals))
		again.Records = k.Records
		again.Entries(d).Close()
		built, always, later := k.index(d), whole.index(d), again.index(d)
		if got := built.dump(); !slices.Equal(got, always.dump()) || !slices.Equal(got, later.dump()) {
			t.Fatalf("%d entries, %d if it is there all the time, %d if it is built later", len(got),
				len(always.dump()), len(later.dump()))
		}
		if totals != others && totals.Old != others.Old || built.bytes != always.bytes ||
			totals.Indexes != built.bytes {
			t.Errorf("memory: %+v and %+v, of the indexes %d and %d", totals, others, built.bytes, always.bytes)
		}
		// When all entities are deleted and pruned, no memory is in use.
		for _, w := range log {
			if !w.a.Last.Deleted {
				at++
				f, _ := entity.New(w.a.Last.Key())
				k.Put(keyOf(w.a.Last.Key().Path[0].GetId()), Version{At: at, Form: f, Deleted: true}, 2)
			}
		}
		for _, w := range log {
			k.Prune(w.a, at)
		}
		if totals.Old != 0 || totals.Indexes != 0 || k.Records.Len() != 0 || built.entries.Len() != 0 {
			t.Errorf("all is deleted: %+v, %d records, %d entries", totals, k.Records.Len(), built.entries.Len())
		}
	}
}

// TestDroppedIndexes uses slightly more indexes in turn than there is memory for. It checks that
// most of them still exist when they are used again. Then it uses only a few others, and checks
// that these are soon never dropped.
func TestDroppedIndexes(t *testing.T) {
	rng := testflag.Rand(t)
	var totals Totals
	k := NewKind("K", &totals)
	for id := range int64(50) {
		put(t, k, rng, id, id)
	}
	const fit, shapes, rounds = 16, 20, 200
	ask := func(d Definition) (built int) {
		if !k.Indexed(d) {
			built = 1
		}
		k.Entries(d).Close()
		for len(k.indexes) > fit && DropUnused(&totals, func(yield func(*Kind) bool) { yield(k) }) {
		}
		return built
	}
	definition := func(i int) Definition {
		return Definition{{Property: "a"}, {Property: "b"}, {Property: fmt.Sprint("c", i)}}
	}
	built := 0
	for range rounds {
		for i := range shapes {
			built += ask(definition(i))
		}
	}
	if built > rounds*shapes/2 {
		t.Errorf("of %d indexes that are asked for in turn %d are built in a round, on average", shapes, built/rounds)
	}
	const others = fit / 2
	for i := range 10000 {
		ask(definition(1000 + i%others))
	}
	for i := range others {
		if !k.Indexed(definition(1000 + i)) {
			t.Errorf("an index that is asked for all the time is not there")
		}
	}
}

// TestIdleIndexes checks that writes keep an unused index up to date for a while, until the index
// is dropped.
func TestIdleIndexes(t *testing.T) {
	rng := testflag.Rand(t)
	var totals Totals
	k := NewKind("K", &totals)
	used, held, idle := Definition{{Property: "a"}}, Definition{{Property: "b"}},
		Definition{{Property: "b", Descending: true}}
	for _, d := range []Definition{used, held, idle} {
		k.Entries(d).Close()
	}
	k.Hold(held)
	for at := range int64(20000) {
		put(t, k, rng, rng.Int64N(10), at)
		if at == 100 && !k.Indexed(idle) {
			t.Error("it was dropped at once")
		}
		if at%100 == 0 {
			k.Entries(used).Close()
		}
		if r, ok := k.Records.Get(keyOf(rng.Int64N(10)).Path); ok {
			k.Prune(r, at)
		}
	}
	if !k.Indexed(used) || !k.Indexed(held) || k.Indexed(idle) {
		t.Errorf("kept: the used one %v, the held one %v, the idle one %v", k.Indexed(used), k.Indexed(held),
			k.Indexed(idle))
	}
	if n := k.index(used).bytes + k.index(held).bytes; totals.Indexes != n {
		t.Errorf("%d bytes, want %d", totals.Indexes, n)
	}
}
