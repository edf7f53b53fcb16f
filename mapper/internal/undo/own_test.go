package undo

import (
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// keysOf returns the keys of the entities with these IDs.
func keysOf(ids ...int64) (keys []*datastore.Key) {
	for _, id := range ids {
		keys = append(keys, keyOf(id))
	}
	return keys
}

// TestUnfound checks the number of entities that a page wrote, and that the query does not find
// just before its commit.
func TestUnfound(t *testing.T) {
	all, some := undolog.KeysOf(keysOf(1, 2, 3), true), undolog.KeysOf(keysOf(1, 2, 3), false)
	for _, c := range []struct {
		name    string
		wrote   undolog.Keys
		written int64
		own     owned
		sure    bool
		unfound int64
	}{
		{"the same entities", all, 3, owned{keys: keysOf(1, 2, 3), found: 3, same: true}, true, 0},
		{"as many others", all, 3, owned{keys: keysOf(1, 2, 4), found: 3}, false, 1},
		{"fewer", all, 3, owned{keys: keysOf(1), found: 1}, false, 2},
		{"more", all, 3, owned{keys: keysOf(1, 2, 3, 4), found: 4}, false, 0},
		{"some were written, and found", some, 3, owned{keys: keysOf(1, 2, 3), found: 7}, true, 0},
		{"some were written, and some found", some, 3, owned{keys: keysOf(2), found: 7}, true, 2},
		{"an entity's hash is that of another one", some, 3, owned{keys: keysOf(1, 2, 3, 4), found: 7}, true, 0},
	} {
		w := &undolog.Wrote{Own: c.wrote, Written: c.written}
		if sure, n := c.own.sure(w), c.own.unfound(w); sure != c.sure || n != c.unfound {
			t.Errorf("%s: sure %v, %d unfound, want %v, %d", c.name, sure, n, c.sure, c.unfound)
		}
	}
}

// TestWithRestored counts the entities that a page wrote and that neither the query nor a batch has
// found.
func TestWithRestored(t *testing.T) {
	all, some := undolog.KeysOf(keysOf(1, 2, 3), true), undolog.KeysOf(keysOf(1, 2, 3), false)
	var page []*keyspace.Position
	for _, key := range keysOf(1, 2, 3) {
		page = append(page, keyspace.At(key))
	}
	digest := record.KeysDigest(page)
	for _, c := range []struct {
		name     string
		wrote    undolog.Keys
		own      owned
		restored []*datastore.Key
		sure     bool
		unfound  int64
	}{
		{"the batches have all", all, owned{keys: keysOf(1, 4), found: 2}, keysOf(1, 2, 3), true, 0},
		{"all are found or restored", all, owned{keys: keysOf(1, 2), found: 2}, keysOf(3), true, 0},
		{"as many, with one of others", all, owned{keys: keysOf(1, 4), found: 2}, keysOf(3), false, 1},
		{"the batches have some", all, owned{keys: keysOf(4), found: 1}, keysOf(1), false, 1},
		{"some that are found", all, owned{keys: keysOf(1), found: 1}, keysOf(1), false, 2},
		{"some of some", some, owned{keys: keysOf(1), found: 7}, keysOf(1, 2), true, 1},
		{"an entity of others", all, owned{keys: keysOf(1, 2), found: 2}, keysOf(7), false, 1},
		{"an entity of others, of some", some, owned{keys: keysOf(1, 2), found: 2}, keysOf(7), true, 1},
		{"an entity of another commit", some, owned{keys: keysOf(1, 2), found: 2}, keysOf(8), true, 1},
		{"nothing", undolog.Keys{}, owned{same: true}, keysOf(8), true, 0},
	} {
		w := &undolog.Wrote{Own: c.wrote, Others: keysOf(7)}
		if w.Own.Any() {
			w.Written = 3
		}
		own := c.own.withRestored(&outcome{batched: c.restored}, w, digest)
		if sure, n := own.sure(w), own.unfound(w); sure != c.sure || n != c.unfound {
			t.Errorf("%s: sure %v, %d unfound, want %v, %d", c.name, sure, n, c.sure, c.unfound)
		}
		if own.same && w.Own.All && !slices.EqualFunc(own.keys, keysOf(1, 2, 3), (*datastore.Key).Equal) {
			t.Errorf("%s: surely the page's are %v, want 1, 2, 3", c.name, own.keys)
		}
	}
	// With Query.ShardBy, the page's entities are not in the order of their keys.
	sharded := record.KeysDigest([]*keyspace.Position{page[2], page[0], page[1]})
	own := owned{keys: keysOf(3, 1, 2), found: 3, same: true}.withRestored(&outcome{batched: keysOf(1)},
		&undolog.Wrote{Own: all, Written: 3}, sharded)
	if !own.same {
		t.Errorf("the query has found exactly the page's entities, and with restored ones it has %v", own.keys)
	}
}

// TestKnown checks which entities' states just before a page the undo knows, if only whole minutes
// are kept.
func TestKnown(t *testing.T) {
	minute := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	all, two := undolog.KeysOf(keysOf(1, 2), true), undolog.KeysOf(keysOf(2), false)
	same := owned{keys: keysOf(1, 2), found: 2, same: true}
	other := owned{keys: keysOf(1, 2), found: 2}
	const before, unknown = "its state just before the page is not known", "perhaps the page wrote it"
	for _, c := range []struct {
		name  string
		wrote undolog.Wrote
		own   owned
		known []*datastore.Key
		left  []string // the starts of the reasons
		kept  int64    // number of entities that are left
	}{
		{"nobody changed them", undolog.Wrote{Own: all, Written: 2, Settled: minute}, same, keysOf(1, 2), nil, 0},
		{"one may have been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute, Fresh: two}, same, keysOf(1),
			[]string{before}, 1},
		{"any may have been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute.Add(1)}, same, nil,
			[]string{before, before}, 2},
		{"all have been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute, Fresh: all}, same, nil,
			[]string{before, before}, 2},
		{"entities of others", undolog.Wrote{Own: all, Written: 2, Settled: minute, Others: keysOf(7, 8)}, same,
			keysOf(1, 2), []string{before, before}, 2},
		{"two were not there", undolog.Wrote{Own: all, Written: 4, Settled: minute}, same, keysOf(1, 2),
			[]string{"2 entities of the page were put"}, 2},
		{"it is not known which", undolog.Wrote{Own: all, Written: 2, Settled: minute}, other, keysOf(1, 2),
			[]string{"others have put or deleted"}, 1},
		{"three were not there, and it is not known which", undolog.Wrote{Own: all, Written: 5, Settled: minute}, other,
			keysOf(1, 2), []string{"others have put or deleted"}, 3},
		{"nor which of them may have been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute.Add(1)}, other,
			nil, []string{"others have put or deleted", unknown, unknown}, 3},
		{"all of them have been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute, Fresh: all}, other,
			nil, []string{"others have put or deleted", unknown, unknown}, 3},
		{"one of them has been changed", undolog.Wrote{Own: all, Written: 2, Settled: minute, Fresh: two}, other,
			keysOf(1), []string{"others have put or deleted", before}, 2},
	} {
		o := new(outcome)
		keys := known(o, &c.wrote, c.own, minute)
		restored := &outcome{done: map[string]bool{keyOf(1).Encode(): true, keyOf(7).Encode(): true}}
		for _, key := range known(restored, &c.wrote, c.own, minute) {
			if key.ID == 1 {
				t.Errorf("%s: entity 1 is restored already, and is still to be restored", c.name)
			}
		}
		if slices.ContainsFunc(restored.left, func(l undolog.Left) bool { return l.Key != nil && l.Key.ID%6 == 1 }) {
			t.Errorf("%s: of entities 1 and 7, which are restored already: %v", c.name, restored.left)
		}
		if !slices.EqualFunc(keys, c.known, (*datastore.Key).Equal) || o.kept != c.kept ||
			!slices.EqualFunc(o.left, c.left, func(l undolog.Left, why string) bool {
				return strings.HasPrefix(l.Why, why)
			}) {
			t.Errorf("%s: known %v, %d left: %v", c.name, keys, o.kept, o.left)
		}
	}
}

// TestOwn undoes pages whose query finds other entities just before the commit than the page has
// processed. It also undoes pages of other forms of ranges.
func TestOwn(t *testing.T) {
	read := func(w *world, to to, then func()) { // others write after the page's reads, and before its commit
		w.between = then
		w.page(0, to)
	}
	const unfound = "0 stays: just before its commit, the job's query no longer found %d entities of the page: " +
		"others had changed or deleted them"
	for _, c := range []struct {
		name string
		job  func(w *world)
		want []string
	}{
		{"one was deleted", func(w *world) {
			read(w, to{1: 7, 2: 7, 3: 7}, func() { w.somebody(to{3: gone}) })
		}, []string{"1 becomes 1", "2 becomes 2", strings.ReplaceAll(unfound, "%d", "1")}},
		{"one that the page wrote was deleted, and others not written", func(w *world) {
			read(w, to{1: 7, 2: gone}, func() { w.somebody(to{2: gone}) })
		}, []string{"1 becomes 1", strings.ReplaceAll(unfound, "%d", "1")}},
		{"one was put", func(w *world) {
			read(w, to{1: 7, 2: 7, 3: 7}, func() { w.somebody(to{4: 4}) })
		}, []string{"1 becomes 1", "2 becomes 2", "3 becomes 3"}},
		{"a range of one entity", func(w *world) {
			r := w.ranges[0]
			r.Alone, r.Start, r.End = true, keyspace.At(keyOf(2)), nil
			w.page(0, to{2: 7})
		}, []string{"2 becomes 2"}},
		{"a range of one entity that was deleted", func(w *world) {
			r := w.ranges[0]
			r.Alone, r.Start, r.End = true, keyspace.At(keyOf(2)), nil
			w.page(0, to{2: gone})
		}, []string{"2 becomes 2"}},
		{"a range of one entity that others had moved in the job's order", func(w *world) {
			w.job.Query = []byte(`{"kind":"K","shard_by":"N"}`)
			// the entity's first attempt failed, so it got a range of its own
			r, was := w.ranges[0], keyspace.At(keyOf(2))
			was.Valued, was.Value = true, int64(9)
			r.Alone, r.Start, r.End = true, was, nil
			w.page(0, to{2: 7})
		}, []string{"2 becomes 2"}},
		{"a range of one kind, in a job over several", func(w *world) {
			w.job.Query = []byte(`{"kinds":["A","K"]}`)
			w.ranges[0].In(keyspace.Space{Kind: "K"})
			w.page(0, to{1: 7, 3: gone})
		}, []string{"1 becomes 1", "3 becomes 3"}},
		{"a range over several kinds", func(w *world) {
			w.job.Query = []byte(`{"kinds":["A","K"]}`)
			w.ranges[0].Start, w.ranges[0].End = nil, nil
			w.page(0, to{1: 7, 3: gone})
		}, []string{"1 becomes 1", "3 becomes 3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 1, []int64{1, 2, 3}, func(w *world) {
				c.job(w)
				w.wantUndo(0, c.want...)
			})
		})
	}
}

// TestKind undoes a page over all entities of a kind, in a job over two kinds. The undo knows which
// entities the page wrote. So it must also count the entity for which the write changed nothing.
func TestKind(t *testing.T) {
	inWorld(t, 1, []int64{1, 2, 3}, func(w *world) {
		w.commit(func(tx *datastore.Transaction) error {
			_, err := tx.Mutate(datastore.NewInsert(datastore.IDKey("A", 1, nil), &thing{1}))
			return err
		})
		w.job.Query = []byte(`{"kinds":["A","K"]}`)
		w.ranges[0].In(keyspace.Space{Kind: "K"})
		w.ranges[0].Start, w.ranges[0].End = nil, nil
		w.page(0, to{1: 7, 2: 2, 3: 7})
		e, err := w.run(0)
		if err != nil || says(e) != "1 becomes 1\n3 becomes 3" || counted(t, e) != "map[already:1 restored:2]" {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// TestKeysOnly undoes a page that deleted entities by their keys, without reading them. An entity
// that no longer existed then must not be reported as lost.
func TestKeysOnly(t *testing.T) {
	for query, want := range map[string]string{
		`{"kind":"K"}`:                  "1 becomes 1\n0 stays: just before its commit",
		`{"kind":"K","keys_only":true}`: "1 becomes 1",
	} {
		inWorld(t, 1, []int64{1, 2, 3}, func(w *world) {
			w.job.Query = []byte(query)
			w.between = func() { w.somebody(to{2: gone}) }
			w.page(0, to{1: gone, 2: gone})
			if got := w.says(0); !strings.HasPrefix(got, want) || want == "1 becomes 1" && got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		})
	}
}

// TestSpaces looks up keys of several namespaces, and more keys than one lookup may have.
func TestSpaces(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		var keys []*datastore.Key
		var all []*datastore.Mutation
		for id := range int64(record.MaxPageSize + 1) {
			keys = append(keys, keyOf(id+1))
		}
		for _, space := range []string{"a", "b"} {
			key := keyOf(1)
			key.Namespace = space
			keys, all = append(keys, key), append(all, datastore.NewInsert(key, &thing{1}))
		}
		all = append(all, datastore.NewInsert(keyOf(1), &thing{1}),
			datastore.NewInsert(keys[record.MaxPageSize], &thing{1}))
		w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(all...); return err })
		found, err := w.undoer().lookup(w.Context(), keys, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, key := range keys {
			if found.Of(key) != nil {
				n++
			}
		}
		if n != 4 {
			t.Errorf("%d are found, want 4", n)
		}
	})
}
