package dsemu

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/metadata"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
	"github.com/scattermap/scattermap/internal/testflag"
)

// TestDescriptionsInPieces describes each reserved kind as a whole, in pieces, and for spans of
// keys. It checks that all of these have the same entities. Some namespaces and kinds are empty or
// deleted, or have odd names. Other calls wait meanwhile, so the description pauses.
func TestDescriptionsInPieces(t *testing.T) {
	rng := testflag.Rand(t)
	for range 20 {
		s := newTestServer(t)
		kindNames := []string{"K", "K\x00", "K\x00\x01", "K\x01", "L", "ü", "日本", "Zz", "Aa", "a.b"}
		put := func(ns, kind string, id int64, properties map[string]*pb.Value) {
			t.Helper()
			key := &pb.Key{
				PartitionId: &pb.PartitionId{NamespaceId: ns},
				Path:        []*pb.Key_PathElement{{Kind: kind, IdType: &pb.Key_PathElement_Id{Id: id}}},
			}
			m := &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{Key: key, Properties: properties}}}
			if properties == nil {
				m.Operation = &pb.Mutation_Delete{Delete: key}
			}
			if _, err := s.Commit(t.Context(), &pb.CommitRequest{
				ProjectId: "p", Mode: pb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*pb.Mutation{m},
			}); err != nil {
				t.Fatal(err)
			}
		}
		namespaces := []string{"", "a", "a.b", "a-b", "Z"}
		for range rng.IntN(60) {
			properties := make(map[string]*pb.Value)
			for range rng.IntN(4) {
				name := []string{"p", "q", "p.q", "p\x00"}[rng.IntN(4)]
				properties[name] = []*pb.Value{entity.Integer(1), entity.Text("x")}[rng.IntN(2)]
			}
			ns, kind := namespaces[rng.IntN(len(namespaces))], kindNames[rng.IntN(len(kindNames))]
			put(ns, kind, 1+rng.Int64N(3), properties)
			if rng.IntN(3) == 0 {
				put(ns, kind, 1+rng.Int64N(3), nil)
			}
		}
		db, err := s.database("p", "")
		if err != nil {
			t.Fatal(err)
		}
		ns := namespaces[rng.IntN(len(namespaces))]
		db.mu.Lock()
		db.mu.waiting.Store(int32(rng.IntN(2))) // pretends that a caller waits, so that the description pauses
		for _, name := range []string{
			"__namespace__", "__kind__", "__property__", "__Stat_Total__",
			"__Stat_Namespace__", "__Stat_Kind__", "__Stat_Ns_Total__", "__Stat_Ns_Kind__",
		} {
			whole, next := db.describe(ns, name, db.lastCommit, metadata.Span{}, math.MaxInt)
			want := propertiesOf(whole)
			if next != "" {
				t.Errorf("%s: all of it goes on at %q", name, next)
			}
			paths := slices.Concat(slices.Sorted(maps.Keys(want)), []string{"", "\x01", "\x01\x00", "\x01__kind__",
				"\x02"})
			for range 10 {
				in := metadata.Span{From: paths[rng.IntN(len(paths))], To: paths[rng.IntN(len(paths))]}
				most := 1 + rng.IntN(3)
				got := describePieces(t, db, ns, name, in, most)
				some := maps.Clone(want)
				maps.DeleteFunc(some, func(path, _ string) bool {
					return path < in.From || in.To != "" && path >= in.To
				})
				if !maps.Equal(got, some) {
					t.Errorf("%s from %q to %q, %d at a time: %d entities, want %d", name, in.From, in.To, most,
						len(got), len(some))
				}
			}
			for path, properties := range want {
				v, ok := db.get(model.Key{Namespace: ns, Kind: name, Path: path}, db.lastCommit)
				if !ok || fmt.Sprint(v.Properties()) != properties {
					t.Errorf("%s: %q alone is there: %v, %v", name, path, ok, v)
				}
			}
		}
		db.mu.waiting.Store(0)
		db.mu.Unlock()
	}
}

// describePieces describes a span of keys in pieces. It checks that each piece except the last has
// at least most entities, and that no entity comes twice.
func describePieces(t *testing.T, db *database, ns, name string, in metadata.Span, most int) map[string]string {
	t.Helper()
	got := make(map[string]string)
	for piece := in; ; {
		k, next := db.describe(ns, name, db.lastCommit, piece, most)
		for path, properties := range propertiesOf(k) {
			if got[path] != "" || path < piece.From {
				t.Errorf("%s: %q is there twice", name, path)
			}
			got[path] = properties
		}
		if next == "" {
			return got
		}
		if piece.From >= next || k.Records.Len() < most {
			t.Fatalf("%s: %d entities from %q on, and it goes on at %q", name, k.Records.Len(), piece.From, next)
		}
		piece.From = next
	}
}

// propertiesOf returns the properties of a kind's entities as texts, by path.
func propertiesOf(k *store.Kind) map[string]string {
	found := make(map[string]string)
	k.Records.Scan(func(path string, r *store.Record) bool {
		found[path] = fmt.Sprint(r.Last.Properties())
		return true
	})
	return found
}

// A writing is a [query.Pause] that calls write in each pause.
type writing struct{ write func() }

func (w writing) Wanted() bool { return true }
func (w writing) Pause()       { w.write() }

// TestScanBesideWrites checks that a query sees only the state of its read time. It scans several
// kinds at once, and several parts of one kind, while others write at every pause.
func TestScanBesideWrites(t *testing.T) {
	rng := testflag.Rand(t)
	s := newTestServer(t)
	write := func() {
		var path []*pb.Key_PathElement
		for range 1 + rng.IntN(2) {
			kind := []int{7, rng.IntN(40), rng.IntN(40)}[rng.IntN(3)]
			id := &pb.Key_PathElement_Id{Id: 1 + rng.Int64N(30)}
			path = append(path, &pb.Key_PathElement{Kind: fmt.Sprint("K", kind), IdType: id})
		}
		key := &pb.Key{Path: path}
		m := &pb.Mutation{Operation: &pb.Mutation_Delete{Delete: key}}
		if rng.IntN(3) > 0 {
			m.Operation = &pb.Mutation_Upsert{Upsert: &pb.Entity{Key: key, Properties: map[string]*pb.Value{
				"n": entity.Array([]*pb.Value{entity.Integer(rng.Int64N(4)), entity.Integer(rng.Int64N(4))}),
			}}}
		}
		if _, err := s.Commit(t.Context(), &pb.CommitRequest{
			ProjectId: "many", Mode: pb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*pb.Mutation{m},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3000 {
		write()
	}
	db, err := s.database("many", "")
	if err != nil {
		t.Fatal(err)
	}
	n := &pb.PropertyReference{Name: "n"}
	in := &pb.Filter{FilterType: &pb.Filter_PropertyFilter{PropertyFilter: &pb.PropertyFilter{
		Property: n, Op: pb.PropertyFilter_IN,
		Value: entity.Array([]*pb.Value{entity.Integer(0), entity.Integer(1), entity.Integer(3)}),
	}}}
	byKey := []*pb.PropertyOrder{{
		Property: &pb.PropertyReference{Name: model.KeyProperty}, Direction: pb.PropertyOrder_DESCENDING,
	}}
	kind := []*pb.KindExpression{{Name: "K7"}}
	queries := map[string]*pb.Query{
		"all kinds": {}, "some of one": {Kind: kind, Filter: in},
		"in order":  {Kind: kind, Filter: in, Order: []*pb.PropertyOrder{{Property: n}}},
		"downwards": {Kind: kind, Filter: in, Order: byKey},
	}
	for _, name := range slices.Sorted(maps.Keys(queries)) { // in a fixed order, so that a seed repeats
		asked := queries[name]
		q, err := query.Parse(db.Database, query.Options{Scatter: 2}, nil, asked)
		if err != nil {
			t.Fatal(err)
		}
		db.mu.Lock()
		release, err := db.prepare(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		at := db.lastCommit
		end := db.scan(at)
		db.mu.Unlock()
		rows := func(pause func()) (all []string) {
			q.Scan(db.stored(q), at, writing{pause}, func(r query.Row) bool {
				all = append(all, fmt.Sprint(r.SortKey, string(r.Version.Wire(false))))
				return true
			})
			return all
		}
		want, pauses := rows(func() {}), 0
		got := rows(func() {
			pauses++
			for range 50 {
				write()
			}
		})
		if !slices.Equal(got, want) || len(want) == 0 || pauses == 0 {
			t.Errorf("%s: %d rows and %d pauses, want %d rows", name, len(got), pauses, len(want))
		}
		end()
		release()
	}
}
