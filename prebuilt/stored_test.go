package prebuilt_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// forge is a mapper that sets a property p which Google's Go client can't write: keys of other
// projects and databases, and an array with indexed and unindexed elements.
var forge = mapper.Update("forge", func(_ context.Context, e *mapper.Entity[mapper.NoParams], _ mapper.NoParams) error {
	key := func(project, database string) *pb.Value {
		of := e.Stored().Key.PartitionId
		k := &pb.Key{
			PartitionId: &pb.PartitionId{ProjectId: project, DatabaseId: database},
			Path:        []*pb.Key_PathElement{{Kind: "Tenant", IdType: &pb.Key_PathElement_Id{Id: 5}}},
		}
		if project == "" {
			k.PartitionId.ProjectId, k.PartitionId.DatabaseId = of.ProjectId, of.DatabaseId
		}
		return &pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: k}}
	}
	put := func(name string, v *pb.Value) {
		whole := e.Stored()
		whole.Properties = map[string]*pb.Value{"p": v}
		e.PutStored(datastore.NameKey("Account", name, nil), whole)
	}
	unindexed := key("", "")
	unindexed.ExcludeFromIndexes = true
	in := func(v *pb.Value) *pb.Value {
		inner := &pb.Entity{Properties: map[string]*pb.Value{"of": v}}
		return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: inner}}
	}
	put("inOurs", in(key("", "")))
	put("inTheirs", in(key("their-project", "")))
	put("ours", key("", ""))
	put("hidden", unindexed)
	put("theirs", key("their-project", ""))
	put("second", key("their-project", "second"))
	put("mixed", &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: []*pb.Value{
		{ValueType: &pb.Value_IntegerValue{IntegerValue: 1}, ExcludeFromIndexes: true}, key("", ""),
	}}}})
	return nil
})

// TestAsStored runs prebuilt mappers over values that Google's Go client can't represent: keys of
// another project, and arrays whose elements differ in their index flags.
func TestAsStored(t *testing.T) {
	d := newDrawer(t)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase(), forge), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Mould", "m", nil),
			new(datastore.PropertyList)); err != nil {
			t.Fatal(err)
		}
		w.run("forge", mapper.Query{Kind: "Mould"}, "{}", "forged")
		accounts := mapper.Query{Kind: "Account"}

		s := w.run("count", accounts, `{"by": "p"}`, "counted")
		want := map[string]int64{
			"entities": 7, "p=ENTITY(of: KEY(Tenant, 5))": 1,
			`p=ENTITY(of: KEY(PROJECT("their-project"), Tenant, 5))`: 1, "p=1": 1, "p=KEY(Tenant, 5)": 3,
			`p=KEY(PROJECT("their-project"), Tenant, 5)`:                     1,
			`p=KEY(PROJECT("their-project"), DATABASE("second"), Tenant, 5)`: 1,
		}
		if !maps.Equal(s.Counters, want) {
			t.Errorf("counters %v, want %v", s.Counters, want)
		}
		s = run(t, world, "check", `{"condition": "p = KEY(Tenant, 5)"}`, accounts, mapper.StartOptions{ID: "checked"})
		if s.Counters["meets"] != 3 || s.Failures != 4 {
			t.Errorf("%d meet the condition, %d do not", s.Counters["meets"], s.Failures)
		}

		tenant := datastore.IDKey("Tenant", 5, nil)
		accounts.Filters = []mapper.Filter{mapper.Where("p", "=", tenant)}
		if s = w.run("touch", accounts, "{}", "touched"); s.Processed < 2 {
			t.Errorf("a filter has found %d entities", s.Processed)
		}
		s = w.run("erase", mapper.Query{}, `{"property": "p", "value": {"key": "`+tenant.Encode()+`"}}`, "erasure")
		if c := d.certificate(t, "erasure"); s.Written != 3 || c.Deleted != 3 || c.Unindexed != 1 {
			t.Errorf("%d were erased, and the certificate says %d, %d of them unindexed", s.Written, c.Deleted,
				c.Unindexed)
		}
		for _, name := range []string{"theirs", "second"} {
			if err := w.Client.Get(t.Context(), datastore.NameKey("Account", name, nil),
				new(datastore.PropertyList)); err != nil {
				t.Errorf("the account %s of another project's tenant: %v", name, err)
			}
		}
	})
}

// TestSetFlags sets a property that is an array. One of its elements is the new value already, and
// another is not indexed. The parameter NoIndex must decide whether the new value is indexed.
func TestSetFlags(t *testing.T) {
	text := func(s string, unindexed bool) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}, ExcludeFromIndexes: unindexed}
	}
	list := func(all ...*pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: all}}}
	}
	stored := []*pb.Value{
		text("free", false), text("free", true), text("gold", true), list(),
		list(text("gold", false), text("free", true)),
		list(text("gold", true), text("free", false)), list(text("free", true), text("gold", false)),
		list(text("free", true), text("free", false)), list(text("gold", true), text("gold", false)),
	}
	mould := mapper.Update("mould",
		func(_ context.Context, e *mapper.Entity[mapper.NoParams], _ mapper.NoParams) error {
			for i, v := range stored {
				whole := e.Stored()
				whole.Properties = map[string]*pb.Value{"plan": v}
				e.PutStored(datastore.IDKey("Account", int64(i+1), nil), whole)
			}
			return nil
		})
	for _, noIndex := range []bool{false, true} {
		mappertest.Run(t, append(prebuilt.Mappers(), mould), nil, func(t *testing.T, w *mappertest.Env) {
			if _, err := w.Client.Put(t.Context(), datastore.NameKey("Mould", "m", nil),
				new(datastore.PropertyList)); err != nil {
				t.Fatal(err)
			}
			run(t, w, "mould", "{}", mapper.Query{Kind: "Mould"}, mapper.StartOptions{})
			params := fmt.Sprintf(`{"property": "plan", "value": "free", "noindex": %v}`, noIndex)
			if s := run(t, w, "set", params, mapper.Query{Kind: "Account"}, mapper.StartOptions{}); s.Failures > 0 {
				t.Errorf("noindex %v: %d failures", noIndex, s.Failures)
			}
			for i, v := range stored {
				var is datastore.PropertyList
				if err := w.Client.Get(t.Context(), datastore.IDKey("Account", int64(i+1), nil), &is); err != nil {
					t.Fatal(err)
				}
				if len(is) != 1 || is[0].Value != "free" || is[0].NoIndex != noIndex {
					t.Errorf("noindex %v: %v became %v", noIndex, v, is)
				}
			}
			found, err := w.Client.Count(t.Context(), datastore.NewQuery("Account").FilterField("plan", "=", "free"))
			if want := len(stored); err != nil || noIndex && found != 0 || !noIndex && found != want {
				t.Errorf("noindex %v: a query finds %d; %v", noIndex, found, err)
			}
		})
	}
}
