package wire

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// TestSame compares entities by version or, if that is unknown, by contents.
func TestSame(t *testing.T) {
	for _, c := range []struct {
		name     string
		was, now Stamp
		want     bool
	}{
		{"the version", Stamp{Version: 5}, Stamp{Version: 5}, true},
		{"another version", Stamp{Version: 5, Entity: sends(1, 1)}, Stamp{Version: 6, Entity: sends(1, 1)}, false},
		{"no version, and the same", Stamp{Entity: sends(1, 1)}, Stamp{Version: 6, Entity: sends(1, 1)}, true},
		{"no version, and another", Stamp{Entity: sends(1, 1)}, Stamp{Entity: sends(1, 2)}, false},
		{"nothing is known", Stamp{}, Stamp{}, false},
		{"no version now, and the same", Stamp{Version: 5, Entity: sends(1, 1)}, Stamp{Entity: sends(1, 1)}, true},
		{"no version now, and another", Stamp{Version: 5, Entity: sends(1, 1)}, Stamp{Entity: sends(1, 2)}, false},
		{"empty, and gone since", Stamp{Entity: new(pb.Entity)}, Stamp{Gone: true}, false},
		{"there since, at the same version", Stamp{Gone: true, Version: 5}, Stamp{Version: 5}, false},
		{"gone since", Stamp{Version: 5}, Stamp{Gone: true}, false},
		{"there since", Stamp{Gone: true}, Stamp{Version: 5}, false},
		{"it was never there", Stamp{Gone: true}, Stamp{Gone: true}, true},
	} {
		if got := c.was.Same(c.now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestNoting checks that the versions of a query's results and of a commit are recorded. The client
// must still get the entities, except if they were read with [Taking].
func TestNoting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		began := time.Now().UnixMicro()
		time.Sleep(time.Second)
		versions := []int64{db.put(t, key(1), 10), db.put(t, key(2), 20)}
		if versions[0] == 0 || versions[1] <= versions[0] {
			t.Errorf("versions %d", versions)
		}
		for _, takes := range []bool{false, true} {
			ctx, v := Noting(t.Context())
			if takes {
				ctx, v = Taking(t.Context())
			}
			var all []datastore.PropertyList
			keys, err := db.GetAll(ctx, datastore.NewQuery("K").Order("__key__"), &all)
			if err != nil || len(v.Of) != 2 || len(keys) != 2 || keys[1].ID != 2 {
				t.Fatalf("%+v, %v, %v", v.Of, keys, err)
			}
			for i, s := range v.Of {
				if s.Version != versions[i] || s.At <= began || s.Gone || (s.Entity != nil) != takes ||
					(len(all[i]) == 0) != takes {
					t.Errorf("taking %v: %+v is noted, and the client has %v", takes, s, all[i])
				}
				if takes && s.Entity.Properties["N"].GetIntegerValue() != int64(10*(i+1)) {
					t.Errorf("%v is taken", s.Entity)
				}
			}
		}
	})
}

// TestReading checks that the results of queries and lookups are recorded, and that the Go client
// still gets them.
func TestReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		version := db.put(t, key(1), 10)
		db.put(t, datastore.NameKey("K", "1", nil), 11)
		ctx, read := Reading(t.Context())
		var e item
		if err := db.Get(ctx, key(1), &e); err != nil || e.N != 10 || read.Of(key(1)).GetVersion() != version {
			t.Errorf("%+v, %v, %v", e, err, read.Of(key(1)))
		}
		name := datastore.NameKey("K", "1", nil)
		if r := read.Of(name); r != nil {
			t.Errorf("%v was not read", r)
		}
		var all []item
		if _, err := db.GetAll(ctx, datastore.NewQuery("K"), &all); err != nil || len(all) != 2 ||
			read.Of(name).GetEntity().Properties["N"].GetIntegerValue() != 11 {
			t.Errorf("%+v, %v, %v", all, err, read.Of(name))
		}
		if _, err := db.Put(ctx, key(1), &item{12}); err != nil { // without Reading, nothing is recorded
			t.Error(err)
		}
	})
}

// TestTaken looks up the entities 1 to 3. Entity 3 does not exist.
func TestTaken(t *testing.T) {
	all := []*datastore.Key{key(1), key(2), key(3)}
	say := func(stamps []Stamp) (said []string) {
		for _, s := range stamps {
			switch {
			case s.Gone:
				said = append(said, "gone")
			case s.Entity != nil:
				said = append(said, fmt.Sprint(s.Entity.Properties["N"].GetIntegerValue()))
			case s.Version != 0:
				said = append(said, "a version")
			default:
				said = append(said, "nothing")
			}
		}
		return said
	}
	for _, c := range []struct {
		name   string
		wanted []*datastore.Key
		stay   int
		taken  []string // the stamps of all entities that Take returns
		client []int64  // the numbers that the client has got
	}{
		{"nothing is wanted", nil, 0, []string{"nothing", "nothing", "nothing"}, []int64{10, 20, 0}},
		{"all", all, 0, []string{"10", "20", "gone"}, []int64{0, 0, 0}},
		{"the first one stays", all, 1, []string{"a version", "20", "gone"}, []int64{10, 0, 0}},
		{"one", all[1:2], 0, []string{"nothing", "20", "nothing"}, []int64{10, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newDatabase(t)
				db.put(t, key(1), 10)
				db.put(t, key(2), 20)
				ctx, taken := TakenBy(t.Context())
				taken.Want(c.wanted, c.stay)
				client := make([]item, len(all))
				_ = db.GetMulti(ctx, all, client) // the third is missing
				for i, want := range c.client {
					if client[i].N != want {
						t.Errorf("the client has %d of entity %d, want %d", client[i].N, i+1, want)
					}
				}
				if got := say(taken.Take(all)); !slices.Equal(got, c.taken) {
					t.Errorf("taken are %q, want %q", got, c.taken)
				}
				if got := say(taken.Take(all)); slices.Contains(got, "20") {
					t.Errorf("once more they are %q", got)
				}
			})
		})
	}
}

// TestTakenTwice checks that two goroutines get the same entity if both want it, no matter which of
// them looks it up first.
func TestTakenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		db.put(t, key(1), 10)
		ctx, taken := TakenBy(t.Context())
		keys := []*datastore.Key{key(1)}
		taken.Want(keys, 0)
		taken.Want(keys, 0)
		if err := db.GetMulti(ctx, keys, make([]item, 1)); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if s := taken.Take(keys)[0]; s.Entity.GetProperties()["N"].GetIntegerValue() != 10 {
				t.Errorf("the %d. has %+v", i+1, s)
			}
		}
		if len(taken.all) > 0 {
			t.Errorf("%d are kept", len(taken.all))
		}
	})
}

// TestAnswers checks which versions are recorded from a commit's answer, and which results the Go
// client gets.
func TestAnswers(t *testing.T) {
	committed := func(versions ...int64) *pb.CommitResponse {
		resp := new(pb.CommitResponse)
		for _, v := range versions {
			resp.MutationResults = append(resp.MutationResults, &pb.MutationResult{Version: v})
		}
		return resp
	}
	three := []Mutation{{Mutation: datastore.NewDelete(key(1))}, {Deletes: key(2)},
		{Mutation: datastore.NewDelete(key(3))}}
	for _, c := range []struct {
		sends    []Mutation
		versions []int64
		client   []int64 // the versions that the client gets
	}{
		{three, []int64{7, 8, 9}, []int64{7, 9}},
		{nil, []int64{7, 8}, []int64{7, 8}},
		{three, []int64{7, 8}, []int64{7, 8}},               // the answer of another commit: it has two results
		{three, []int64{7, 8, 9, 10}, []int64{7, 8, 9, 10}}, // the answer of another commit: it has four results
	} {
		v := &Versions{sends: c.sends, Of: []Stamp{{Version: 1}}}
		resp := committed(c.versions...)
		v.Answer(resp)
		var noted, got []int64
		for _, s := range v.Of {
			noted = append(noted, s.Version)
		}
		for _, r := range resp.MutationResults {
			got = append(got, r.Version)
		}
		if !slices.Equal(noted, c.versions) || !slices.Equal(got, c.client) {
			t.Errorf("%v of %d mutations: noted %v, and the client gets %v", c.versions, len(c.sends), noted, got)
		}
	}
	v, bare := new(Versions), &pb.Entity{Key: sends(1, 1).Key}
	v.Taken.Want([]*datastore.Key{key(1)}, 0)
	v.Answer(&pb.LookupResponse{Found: []*pb.EntityResult{{Entity: sends(2, 2), Version: 6},
		{Entity: bare, Version: 5}}})
	if got := v.Taken.Take([]*datastore.Key{key(1), key(2)}); got[0].Version != 5 || got[0].Entity == nil ||
		got[0].Entity.Properties == nil || got[1] != (Stamp{}) {
		t.Errorf("a lookup takes %+v", got)
	}
	var taken Taken
	taken.Want([]*datastore.Key{key(1)}, 0)
	taken.Answer(committed(5))
	if got := taken.Take([]*datastore.Key{key(1)}); !got[0].Gone || got[0].Entity != nil {
		t.Errorf("a commit is no lookup: %+v", got)
	}
}
