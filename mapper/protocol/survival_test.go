package protocol_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/wire"
	"github.com/scattermap/scattermap/prebuilt"
)

func str(s string, noIndex bool) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}, ExcludeFromIndexes: noIndex}
}

func integer(n int64) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
}

// TestUndeclaredPropertiesSurvive puts an entity with values that Google's Go client can't
// represent. Then a job changes another property. All other properties must stay the same, byte for
// byte.
func TestUndeclaredPropertiesSurvive(t *testing.T) {
	t.Parallel()
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw := pb.NewDatastoreClient(conn)

	key := &pb.Key{
		PartitionId: &pb.PartitionId{ProjectId: "test"},
		Path: []*pb.Key_PathElement{{Kind: "Account",
			IdType: &pb.Key_PathElement_Name{Name: "a"}}},
	}
	entity := &pb.Entity{Key: key, Properties: map[string]*pb.Value{
		"Balance": integer(5),
		"Owner":   str("Ann", false),
		"flags per element": {ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{
			Values: []*pb.Value{str("short", false), str(strings.Repeat("long", 1000), true), integer(7)},
		}}},
		"empty array": {ValueType: &pb.Value_ArrayValue{ArrayValue: new(pb.ArrayValue)}},
		"meaning":     {ValueType: &pb.Value_IntegerValue{IntegerValue: 9}, Meaning: 13},
		"a.dotted":    str("x", true),
		"inside": {ExcludeFromIndexes: true, ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{
			Properties: map[string]*pb.Value{"deep": str("x", true),
				"null": {ValueType: &pb.Value_NullValue{}}},
		}}},
	}}
	if _, err := raw.Commit(t.Context(), &pb.CommitRequest{
		ProjectId: "test", Mode: pb.CommitRequest_NON_TRANSACTIONAL,
		Mutations: []*pb.Mutation{{Operation: &pb.Mutation_Upsert{Upsert: entity}}},
	}); err != nil {
		t.Fatal(err)
	}

	w := newWorld(t, setting{client: client}, addCredit)
	w.wait(w.start(10, nil))

	resp, err := raw.Lookup(t.Context(), &pb.LookupRequest{ProjectId: "test", Keys: []*pb.Key{key}})
	if err != nil {
		t.Fatal(err)
	}
	entity.Properties["Balance"] = integer(15)
	if diff := cmp.Diff(entity, resp.Found[0].Entity, protocmp.Transform()); diff != "" {
		t.Errorf("the entity (-want +got):\n%s", diff)
	}
}

// TestUndeclaredValuesSurvive does the same as TestUndeclaredPropertiesSurvive for single values.
// It uses databases that keep the properties outside of a write's mask, and one that drops them.
func TestUndeclaredValuesSurvive(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	type full struct {
		Balance int64
		Owner   string
		Tags    []string
		Note    string `datastore:",noindex"`
		Home    struct{ Town, Street string }
	}
	type part struct {
		Balance int64
		Home    struct{ Town string }
	}
	m := mapper.Update("part", func(_ context.Context, a *mapper.Entity[part], _ mapper.NoParams) error {
		a.Value.Balance++
		a.Value.Home.Town = "York"
		return nil
	})
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, m)
		before := full{Balance: 1, Owner: "Ann", Tags: []string{"x", "y"}, Note: strings.Repeat("n", 2000)}
		before.Home.Town, before.Home.Street = "Bath", "High"
		key := datastore.NameKey("Account", "a", nil)
		if _, err := client.Put(t.Context(), key, &before); err != nil {
			t.Fatal(err)
		}
		if s := over(w, m, nil); s.State != mapper.StateSucceeded {
			t.Fatalf("status %+v", s)
		}
		var after full
		if err := client.Get(t.Context(), key, &after); err != nil {
			t.Fatal(err)
		}
		want := before
		want.Balance, want.Home.Town = 2, "York"
		if diff := cmp.Diff(want, after); diff != "" {
			t.Errorf("the entity (-want +got):\n%s", diff)
		}
	})
}

type (
	address struct {
		City string
		Zip  string `datastore:",noindex"`
	}
	audit struct{ Created, Seen time.Time }
	// A patron has a field for each way in which Google's client stores Go types.
	patron struct {
		audit
		Name    string
		Seats   int
		Large   bool
		Ratio   float32
		Nick    string  `datastore:"nick,omitempty"`
		Bio     string  `datastore:",noindex"`
		Age     *int    `datastore:"age"`
		Limit   *int    `datastore:",omitempty"`
		Home    address `datastore:",flatten"`
		Work    address
		Old     *address
		Homes   []address
		Tags    []string
		Photo   []byte `datastore:",noindex"`
		Boss    *datastore.Key
		Where   datastore.GeoPoint
		Any     any
		Ignored int `datastore:"-"`
	}
	// A plainPatron has no embedded struct. So its fields are compared with the stored properties
	// one by one.
	plainPatron struct {
		Seen  time.Time
		Name  string
		Seats int
		Large bool
		Ratio float32
		Nick  string   `datastore:"nick,omitempty"`
		Bio   string   `datastore:",noindex"`
		Home  address  `datastore:",flatten"`
		Work  address  `datastore:",noindex"`
		Old   *address `datastore:",omitempty"`
		Tags  []string `datastore:",noindex"`
		Photo []byte   `datastore:",noindex"`
		Boss  *datastore.Key
	}
	// A selfMade has its own Save method, so its properties are known only when it is saved.
	selfMade struct{ Name string }
)

func (u *selfMade) Load(p []datastore.Property) error {
	for _, x := range p {
		if x.Name == "Name" {
			u.Name, _ = x.Value.(string)
		}
	}
	return nil
}

func (u *selfMade) Save() ([]datastore.Property, error) {
	return []datastore.Property{{Name: "Name", Value: u.Name}, {Name: "Lower", Value: strings.ToLower(u.Name)},
		{Name: "Length", Value: len(u.Name), NoIndex: true}}, nil
}

// TestResaveStoresWhatPutDoes runs jobs that save entities which older versions of their Go type
// have stored. Afterwards each entity must have what the client's Put would store for the struct,
// and also the properties that the struct lacks. A second job must write nothing.
func TestResaveStoresWhatPutDoes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 1, 2, 3, 4567, time.UTC)
	name := func(v string) datastore.Property { return datastore.Property{Name: "Name", Value: v} }
	stored := []datastore.PropertyList{
		{},
		{name("Ann"), {Name: "Seats", Value: int64(11)}},
		{name("Bob"), {Name: "Seats", Value: int64(3)}, {Name: "undeclared", Value: []any{int64(1), "x"},
			NoIndex: true}},
		{name("Cy"), {Name: "Seats", Value: nil}, {Name: "nick", Value: ""}, {Name: "Limit", Value: nil},
			{Name: "Bio", Value: "indexed"}, {Name: "Tags", Value: []any{}}},
		{name("Di"),
			{Name: "Work",
				Value: &datastore.Entity{Properties: []datastore.Property{{Name: "City", Value: "Rome"},
					{Name: "undeclared", Value: "u"}}}}},
		{name("Ed"), {Name: "Home.City", Value: "Oslo"}, {Name: "Ratio", Value: 0.1},
			{Name: "Photo", Value: "text", NoIndex: true}, {Name: "Tags", Value: "one"}},
		{name("Flo"), {Name: "Old", Value: nil}, {Name: "Seen", Value: now.Truncate(time.Microsecond)},
			{Name: "Boss", Value: datastore.IDKey("Patron", 1, nil)},
			{Name: "Tags", Value: []any{"a", "b"}, NoIndex: true}},
	}
	all := func(names string) func(string) bool {
		return func(name string) bool { return slices.Contains(strings.Fields(names), name) }
	}
	large := func(name string, seats int) bool { return seats > 10 || name == "Flo" }
	for _, run := range []func(t *testing.T, stored []datastore.PropertyList){
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, all("undeclared"), func(u *patron) {
				u.Large, u.Seen = large(u.Name, u.Seats), now
			})
		},
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, all("undeclared Limit"), func(u *plainPatron) {
				u.Large = large(u.Name, u.Seats)
			})
		},
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, func(name string) bool { return !all("Name Lower Length")(name) },
				func(*selfMade) {})
		},
	} {
		synctest.Test(t, func(t *testing.T) { run(t, stored) })
	}
}

// storesWhatPutDoes runs a job with the Go type T over stored entities. Some of their properties
// are not in T.
func storesWhatPutDoes[T any](
	t *testing.T, stored []datastore.PropertyList, undeclared func(name string) bool, change func(*T),
) {
	m := mapper.Update("save", func(_ context.Context, e *mapper.Entity[T], _ mapper.NoParams) error {
		change(&e.Value)
		e.Resave()
		return nil
	})
	w := newWorld(t, setting{}, m)
	var keys []*datastore.Key
	want := make(map[string]datastore.PropertyList)
	for i := range stored {
		key, elsewhere := datastore.IDKey("Patron", int64(1+i), nil), datastore.IDKey("Elsewhere", int64(1+i), nil)
		if _, err := w.client.Put(t.Context(), key, &stored[i]); err != nil {
			t.Fatal(err)
		}
		var v T
		if err := w.client.Get(t.Context(), key, &v); err != nil &&
			!strings.Contains(err.Error(), "no such struct field") {
			t.Fatal(err)
		}
		change(&v)
		if _, err := w.client.Put(t.Context(), elsewhere, &v); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		want[key.String()] = w.propertiesOf(elsewhere)
	}
	finish := func(written int64) {
		t.Helper()
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Patron"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != int64(len(keys)) || s.Written != written {
			t.Errorf("%d processed, %d written, want %d and %d", s.Processed, s.Written, len(keys), written)
		}
	}
	finish(int64(len(keys)))
	for i, key := range keys {
		for _, p := range stored[i] {
			if undeclared(p.Name) {
				want[key.String()] = append(want[key.String()], p)
			}
		}
		got, byName := w.propertiesOf(key), cmpopts.SortSlices(func(a, b datastore.Property) int {
			return strings.Compare(a.Name, b.Name)
		})
		for _, p := range got {
			inside, ok := p.Value.(*datastore.Entity)
			if !ok || undeclared(p.Name) || p.Name != "Work" || i != 4 {
				continue
			}
			n := len(inside.Properties)
			if inside.Properties = slices.DeleteFunc(inside.Properties, func(p datastore.Property) bool {
				return p.Name == "undeclared" && p.Value == "u"
			}); len(inside.Properties) == n {
				t.Errorf("%v: what was undeclared inside is gone: %+v", key, inside)
			}
		}
		if diff := cmp.Diff(want[key.String()], got, byName, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", key, diff)
		}
	}
	finish(0)
}

func (w *world) propertiesOf(key *datastore.Key) (list datastore.PropertyList) {
	w.Helper()
	if err := w.client.Get(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
	return list
}

var (
	leftAlone       = flag.Int("leftalone", 300, "how many random entities TestLeftAlone has")
	leftAloneGoogle = flag.Int("leftalone-google", 40, "how many of them on each of Google's emulators")
)

// A partly is a Go type with three properties, for entities that have many more.
type partly struct {
	Number int64
	Text   string
	List   []string `datastore:",noindex"`
}

var (
	idle = mapper.Update("idle", func(context.Context, *mapper.Entity[partly], mapper.NoParams) error { return nil })
	add  = mapper.Update("add", func(_ context.Context, e *mapper.Entity[partly], _ mapper.NoParams) error {
		e.Value.Number++
		return nil
	})
	idleList = mapper.Update("idleList",
		func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
			e.Value = slices.Clone(e.Value)
			slices.Reverse(e.Value)
			return nil
		})
	renameList = mapper.Update("renameList",
		func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
			for i, p := range e.Value {
				if p.Name == "other" {
					e.Value[i].Name = "moved"
				}
			}
			return nil
		})
)

// TestLeftAlone runs mappers that change little over random entities with everything that
// Datastore's protocol can express. All other properties must stay the same, byte for byte.
// Entities that need no change must keep their version. The same queries must find the entities.
func TestLeftAlone(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	rng := testflag.Rand(t) // outside of virtual time, in which the seed would always be the same
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, append(prebuilt.Mappers(), idle, add, idleList, renameList)...)
		leavesAlone(t, w, rng, *leftAlone, false)
	})
}

// TestLeftAloneOnGoogle does the same as TestLeftAlone on Google's emulators, with entities that
// they accept.
func TestLeftAloneOnGoogle(t *testing.T) {
	t.Parallel()
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			w := newWorld(t, setting{client: googletest.Client(t, p)}, append(prebuilt.Mappers(), idle, add, idleList,
				renameList)...)
			leavesAlone(t, w, testflag.Rand(t), *leftAloneGoogle, true)
		})
	}
}

// A zoo is a kind with random entities, and the test that runs mappers over it.
type zoo struct {
	*world
	rng     *rand.Rand
	project string
	keys    []*datastore.Key
	runs    int
}

// projectOf returns the project of a client. It is only in keys that the client has read.
func projectOf(t *testing.T, client *datastore.Client) string {
	t.Helper()
	key := datastore.NameKey("Probe", "of the project", nil)
	if _, err := client.Put(t.Context(), key, new(datastore.PropertyList)); err != nil {
		t.Fatal(err)
	}
	ctx, results := wire.Reading(t.Context())
	if err := client.Get(ctx, key, new(ignoring)); err != nil {
		t.Fatal(err)
	}
	return results.Of(key).GetEntity().GetKey().GetPartitionId().GetProjectId()
}

func leavesAlone(t *testing.T, w *world, rng *rand.Rand, n int, plain bool) {
	z := &zoo{world: w, rng: rng, project: projectOf(t, w.client)}
	for i := range n {
		key := datastore.IDKey("Thing", int64(i+1), nil)
		if z.rng.IntN(2) == 0 {
			key = datastore.NameKey("Thing", fmt.Sprintf("ü%d", i), datastore.IDKey("Parent", int64(i%3+1), nil))
		}
		z.keys = append(z.keys, key)
	}
	for some := range slices.Chunk(z.keys, 50) {
		var all []*pb.Entity
		for _, key := range some {
			all = append(all, z.entity(key, plain))
		}
		z.put(some, all)
	}
	first, found := z.read("Thing"), z.found()

	check := func(what string, written int, want func(key *datastore.Key, e *pb.Entity)) {
		t.Helper()
		now := z.read("Thing")
		for _, key := range z.keys {
			was, is := first[pbkey.Text(key)], now[pbkey.Text(key)]
			e := pbvalue.Clone(was.GetEntity())
			if want != nil {
				want(key, e)
			}
			if !pbvalue.SameEntity(e, is.GetEntity()) {
				t.Fatalf("%s: %v\nwas  %.2000v\nwant %.2000v\nis   %.2000v", what, key, was.GetEntity(), e,
					is.GetEntity())
			}
			if written == 0 && was.GetVersion() != is.GetVersion() {
				t.Fatalf("%s: %v was written, from %d to %d: %.2000v", what, key, was.GetVersion(), is.GetVersion(),
					was.GetEntity())
			}
		}
		first = now
	}

	same := func(after string) {
		t.Helper()
		if now := z.found(); !maps.Equal(found, now) {
			t.Errorf("after %s queries find %v, and did find %v", after, now, found)
		}
	}

	z.run(idle.Name(), "{}", 0)
	check("an Update that does nothing", 0, nil)
	z.run(idleList.Name(), "{}", 0)
	check("a PropertyList that is what it was", 0, nil)
	z.run("touch", "{}", n)
	check("touch", n, nil)
	same("touch")
	z.run("set", `{"property": "added", "value": 5}`, n)
	check("set", n, func(_ *datastore.Key, e *pb.Entity) {
		e.Properties["added"] = &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: 5}}
	})
	z.run("drop", `{"properties": ["added"]}`, n)
	check("drop", n, func(_ *datastore.Key, e *pb.Entity) { delete(e.Properties, "added") })
	same("set and drop")
	move := func(from, to string) func(*datastore.Key, *pb.Entity) {
		return func(_ *datastore.Key, e *pb.Entity) {
			e.Properties[to] = e.Properties[from]
			delete(e.Properties, from)
		}
	}
	z.run("rename", `{"from": "moving", "to": "other"}`, n)
	check("rename", n, move("moving", "other"))
	z.run(renameList.Name(), "{}", n)
	check("a PropertyList that renames", n, move("other", "moved"))
	z.run("copy", `{"kind": "Copied"}`, -1)
	copies := z.read("Copied")
	for _, key := range z.keys {
		to := *key
		to.Kind = "Copied"
		e := pbvalue.Clone(first[pbkey.Text(key)].GetEntity())
		e.Key.Path[len(e.Key.Path)-1].Kind = "Copied"
		if is := copies[pbkey.Text(&to)].GetEntity(); !pbvalue.SameEntity(e, is) {
			t.Fatalf("copy: %v\nwant %.2000v\nis   %.2000v", key, e, is)
		}
	}
	check("copy", 0, nil)

	found = z.found() // the new name finds the renamed property
	job := z.run(add.Name(), "{}", n)
	before := first
	check("an Update of one field", n, func(_ *datastore.Key, e *pb.Entity) {
		e.Properties["Number"] =
			&pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: e.Properties["Number"].GetIntegerValue() + 1}}
	})
	if plain {
		return // Google's emulators do not tell an entity's version
	}
	time.Sleep(time.Minute)
	undo, err := job.Undo(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := z.wait(undo); s.State != mapper.StateSucceeded {
		t.Fatalf("the undo is %v: %s", s.State, s.Error)
	}
	first = before
	check("undo", n, nil)
	same("undo")
}

// entity returns a random entity. It has the properties that mappers change, and the ones in
// partly. If plain is set, Google's emulators accept it.
func (z *zoo) entity(key *datastore.Key, plain bool) *pb.Entity {
	k := pbvalue.Key(key)
	if k.PartitionId == nil {
		k.PartitionId = new(pb.PartitionId)
	}
	k.PartitionId.ProjectId = z.project
	e := anyentity.New(z.rng, k, plain)
	e.Properties["moving"] = anyentity.Value(z.rng, k, plain)
	e.Properties["Number"] = &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: z.rng.Int64N(100)}}
	text := func() *pb.Value {
		v := &pb.Value{ValueType: &pb.Value_StringValue{StringValue: strings.Repeat("x", z.rng.IntN(3))},
			ExcludeFromIndexes: z.rng.IntN(2) == 0}
		if z.rng.IntN(3) == 0 {
			v.ValueType = &pb.Value_NullValue{}
		}
		return v
	}
	list := new(pb.ArrayValue)
	for range z.rng.IntN(4) {
		list.Values = append(list.Values, text())
	}
	e.Properties["Text"] = text()
	e.Properties["List"] = &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	if z.rng.IntN(4) == 0 {
		e.Properties["List"] = text()
	}
	return e
}

// put writes entities unchanged, by the protocol and not by the client.
func (z *zoo) put(keys []*datastore.Key, all []*pb.Entity) {
	z.Helper()
	mutations := make([]wire.Mutation, len(keys))
	for i, key := range keys {
		mutations[i] = wire.Mutation{Mutation: datastore.NewUpsert(key, wire.Unsent()),
			Condition: wire.Condition{Writes: all[i], Free: true}}
	}
	if _, err := wire.Commit(z.Context(), z.client, mutations); err != nil {
		z.Fatalf("%.2000s", err)
	}
}

// read returns all entities of a kind with their versions, by key.
func (z *zoo) read(kind string) map[string]*pb.EntityResult {
	z.Helper()
	ctx, results := wire.Reading(z.Context())
	all := make(map[string]*pb.EntityResult)
	for it := z.client.Run(ctx, datastore.NewQuery(kind)); ; {
		key, err := it.Next(new(ignoring))
		if err != nil {
			break // only the entities that were read before the error
		}
		all[pbkey.Text(key)] = results.Of(key)
	}
	if len(all) != len(z.keys) {
		z.Fatalf("%d entities of %s, want %d", len(all), kind, len(z.keys))
	}
	return all
}

// An ignoring is a Go type whose Load method ignores all properties.
type ignoring struct{}

func (*ignoring) Load([]datastore.Property) error     { return nil }
func (*ignoring) Save() ([]datastore.Property, error) { return nil, nil }

// found returns how many entities each of several queries finds.
func (z *zoo) found() map[string]int {
	z.Helper()
	all := make(map[string]int)
	for _, name := range append(anyentity.Names, "moving", "moved", "Text", "List", "a.p", "N.N") {
		for _, v := range []any{nil, "", "s", "x", true, int64(0), 1.5, []byte("s"), datastore.GeoPoint{Lat: 47.25}} {
			n, err := z.client.Count(z.Context(), datastore.NewQuery("Thing").FilterField(name, "=", v).KeysOnly())
			if err != nil {
				continue // a filter can't have this property name
			}
			all[fmt.Sprintf("%s=%T%v", name, v, v)] = n
		}
	}
	return all
}

// run runs a mapper by its name, and checks how many entities it writes (-1: any number). It
// returns the job.
func (z *zoo) run(name, params string, written int) *mapper.Job {
	z.Helper()
	z.runs++
	job, err := z.engine.StartByName(z.Context(), name, mapper.Query{Kind: "Thing"}, json.RawMessage(params),
		&mapper.StartOptions{ID: fmt.Sprintf("run%d", z.runs)})
	if err != nil {
		z.Fatal(err)
	}
	s := z.wait(job)
	if s.State != mapper.StateSucceeded || s.Processed != int64(len(z.keys)) || written >= 0 &&
		s.Written != int64(written) {
		failures, _, _ := job.FailuresPage(z.Context(), "")
		for _, f := range failures[:min(3, len(failures))] {
			z.Logf("%v: %s", f.Key, f.Error)
		}
		z.Fatalf("%s is %v: %d processed, %d written, want %d and %d: %s", name, s.State, s.Processed, s.Written,
			len(z.keys), written, s.Error)
	}
	return job
}

// TestOddNames runs mappers that change properties with unusual names: all names of up to three of
// some characters, and others. Each entity also has the properties that would be changed if a name
// was misread.
func TestOddNames(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	raise := mapper.Update("raise",
		func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
			for i, p := range e.Value {
				if n, ok := p.Value.(int64); ok && n < 100 {
					e.Value[i].Value = n + 1
				}
			}
			return nil
		})
	names := slices.Clone(anyentity.Names)
	for some := []string{""}; len(some[0]) < 3; {
		var longer []string
		for _, s := range some {
			for _, c := range "`\\.a-" {
				longer = append(longer, s+string(c))
			}
		}
		some = longer
		names = append(names, some...)
	}
	test := func(t *testing.T, w *world) {
		z := &zoo{world: w, project: projectOf(t, w.client)}
		odd := func(name string, n int64) map[string]*pb.Value {
			all := make(map[string]*pb.Value)
			for _, other := range []string{"a", "b", "q", "a.b", "a-", strings.Trim(name, "`"),
				strings.ReplaceAll(name, `\`, "")} {
				if other != "" {
					all[other] = &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: 100}}
				}
			}
			all[name] = &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
			return all
		}
		var all []*pb.Entity
		for i, name := range names {
			key := datastore.IDKey("Thing", int64(i+1), nil)
			k := pbvalue.Key(key)
			k.PartitionId = &pb.PartitionId{ProjectId: z.project}
			z.keys, all = append(z.keys, key), append(all, &pb.Entity{Key: k, Properties: odd(name, 5)})
		}
		z.put(z.keys, all)
		z.run(raise.Name(), "{}", len(names))
		is := z.read("Thing")
		for i, name := range names {
			if got := is[pbkey.Text(z.keys[i])].GetEntity(); !maps.EqualFunc(got.GetProperties(), odd(name, 6),
				pbvalue.Same) {
				t.Errorf("%q: %v", name, got.GetProperties())
			}
		}
	}
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newWorld(t, setting{}, raise)) })
	})
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) { test(t, newWorld(t, setting{client: googletest.Client(t, p)}, raise)) })
	}
}

// TestFilterOfMixedElements starts a job whose filter finds only one entity. It has an array whose
// first element is not indexed.
func TestFilterOfMixedElements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, idle)
		z := &zoo{world: w, project: projectOf(t, w.client), keys: []*datastore.Key{datastore.IDKey("Thing", 1, nil)}}
		number := func(n int64, unindexed bool) *pb.Value {
			return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}, ExcludeFromIndexes: unindexed}
		}
		k := pbvalue.Key(z.keys[0])
		k.PartitionId = &pb.PartitionId{ProjectId: z.project}
		z.put(z.keys, []*pb.Entity{{Key: k, Properties: map[string]*pb.Value{
			"Number": number(1, false),
			"p": {ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: []*pb.Value{number(1, true),
				number(5, false)}}}},
		}}})
		for op, want := range map[string]int64{"=": 1, ">=": 1, "<=": 1} {
			s := finish(w, idle, mapper.Query{Kind: "Thing", Filters: []mapper.Filter{mapper.Where("p", op, 5)}}, nil)
			if s.State != mapper.StateSucceeded || s.Processed != want {
				t.Errorf("p %s 5: %s, %d entities: %s", op, s.State, s.Processed, s.Error)
			}
		}
	})
}
