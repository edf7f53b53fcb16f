package source

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// TestProbe checks queries before the start of a job. The database has one index, and an entity of
// the kind K in each of the namespaces a and b.
func TestProbe(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	where := func(p, op string, v any) []query.Filter { return []query.Filter{{Property: p, Op: op, Value: v}} }
	in := func(q query.Query) query.Query { q.Kind, q.Namespace = "K", "a"; return q }
	for _, c := range []struct {
		name  string
		q     query.Query
		empty bool
		want  string // a part of the error; empty: no error
		times bool
	}{
		{name: "a kind", q: in(query.Query{})},
		{name: "all namespaces", q: query.Query{Kind: "K", AllNamespaces: true}},
		{name: "a kind that has no entities", q: query.Query{Kind: "L", Namespace: "a"},
			want: `the kind "L" has no entities in the namespace "a": check the kind, the project and the database`},
		{name: "one that may have none", q: query.Query{Kind: "L", Namespace: "a"}, empty: true},
		{name: "one of several", q: query.Query{Kinds: []string{"K", "L"}, AllNamespaces: true},
			want: `the kind "L" has no entities in any`},
		{name: "in one of several namespaces", q: query.Query{Kind: "K", Namespaces: []string{"b", "c"}}},
		{name: "in none of several", q: query.Query{Kind: "K", Namespaces: []string{"c", "d"}}, want: "in any of"},
		{name: "a filter", q: in(query.Query{Filters: where("n", "=", int64(5))})},
		{name: "of another type", q: in(query.Query{Filters: where("n", "=", "5")}), want: "of the type integer"},
		{name: "all values pass, of another type", q: in(query.Query{ShardBy: "n", Filters: where("n", "<", "5")}),
			want: "of the type integer"},
		{name: "by a property that is not there", q: in(query.Query{Filters: where("m", "=", int64(5))}),
			want: `no entity has an indexed property "m"`},
		{name: "by one that may not be there", q: in(query.Query{Filters: where("m", "=", int64(5))}), empty: true},
		{name: "by one that is null", q: in(query.Query{Filters: where("null", "=", "x")})},
		{name: "by keys and an inequality", q: in(query.Query{Filters: where("n", ">", int64(1))}),
			want: "- kind: K\n  properties:\n  - name: __key__\n  - name: \"n\""},
		{name: "by values, where there is an index", q: in(query.Query{ShardBy: "n", Filters: where("t", "=", noon)})},
		{name: "by values, where there is none", q: in(query.Query{ShardBy: "t", Filters: where("n", "=", int64(5))}),
			want: "- kind: K\n  properties:\n  - name: \"n\"\n  - name: t"},
		{name: "by times", q: in(query.Query{ShardBy: "t"}), times: true},
		{name: "by numbers", q: in(query.Query{ShardBy: "n"})},
		{name: "by values that are not there", q: in(query.Query{ShardBy: "m"}),
			want: `Query.ShardBy: no entity has an indexed property "m"`},
		{name: "by values that may not be there", q: in(query.Query{ShardBy: "m"}), empty: true},
		{name: "by values in one of several namespaces",
			q: query.Query{Kind: "K", Namespaces: []string{"b", "c"}, ShardBy: "n"}},
		{name: "by values in no namespace", q: query.Query{Kind: "K", AllNamespaces: true, ShardBy: "m"},
			want: `no entity has an indexed property "m"`},
		{name: "as it was", q: in(query.Query{ReadTime: noon}), want: "can't be read as it was"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, src := newEmulator(t, &emulator.Options{Indexes: []byte("indexes:\n- kind: K\n  properties:\n" +
					"  - name: t\n  - name: n\n")})
				for _, namespace := range []string{"a", "b"} {
					key := datastore.IDKey("K", 1, nil)
					key.Namespace = namespace
					if _, err := src.Client.Put(t.Context(), key, &datastore.PropertyList{{Name: "n", Value: int64(5)},
						{Name: "t", Value: noon}, {Name: "null", Value: nil}}); err != nil {
						t.Fatal(err)
					}
				}
				times, err := src.Of(t.Context(), c.q).Probe(t.Context(), c.q, c.empty)
				if (err == nil) != (c.want == "") || times != c.times {
					t.Fatalf("%v, times %v", err, times)
				}
				if err != nil && (!strings.Contains(err.Error(), c.want) || !errors.Is(err, fault.ErrArguments)) {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestSnapshot reads the database's state at a past time for longer than a transaction lives.
func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, src := newEmulator(t, nil)
		key := datastore.IDKey("K", 1, nil)
		put := func(n int64) {
			if _, err := src.Client.Put(t.Context(), key, &struct{ N int64 }{n}); err != nil {
				t.Fatal(err)
			}
		}
		put(1)
		time.Sleep(time.Minute)
		then := time.Now().Truncate(time.Second)
		time.Sleep(time.Minute)
		put(2)
		was, is := src.Of(t.Context(), query.Query{Kind: "K", ReadTime: then}),
			src.Of(t.Context(), query.Query{Kind: "K"})
		for _, wait := range []time.Duration{0, time.Second, snapshotIdle + time.Second, snapshotAge,
			10 * time.Minute} {
			time.Sleep(wait)
			for s, want := range map[*Source]int64{&was: 1, &is: 2} {
				stamps, err := s.Stored(t.Context())([]*datastore.Key{key})
				if err != nil || stamps[0].Entity.Properties["N"].GetIntegerValue() != want {
					t.Errorf("after %v: %+v, %v, want %d", wait, stamps, err, want)
				}
				if n, err := s.Counted(t.Context(), query.Query{Kind: "K"}.Scans(nil, nil)[0], 0); err != nil ||
					n != 1 {
					t.Errorf("after %v: %d, %v", wait, n, err)
				}
			}
		}
		time.Sleep(time.Hour) // after this, the database no longer keeps the state of that time
		if _, err := was.Stored(t.Context())([]*datastore.Key{key}); !fault.IsFatal(err) || !errors.As(err,
			new(snapshotError)) {
			t.Errorf("an hour later: %v", err)
		}
	})
}
