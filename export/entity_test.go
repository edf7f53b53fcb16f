package export_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/parquet-go/parquet-go"
	"github.com/twmb/avro/ocf"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// everything returns an entity with values of all types of Datastore.
func everything(n int64) (*datastore.Key, datastore.PropertyList) {
	parent := datastore.IDKey("Team", n+1, nil)
	parent.Namespace = "north"
	key := datastore.NameKey("Everything", "a \"name\", ü\n", parent)
	key.Namespace = "north"
	return key, datastore.PropertyList{
		{Name: "null"},
		{Name: "bool", Value: true},
		{Name: "int", Value: int64(math.MaxInt64)},
		{Name: "float", Value: 0.1, NoIndex: true},
		{Name: "nan", Value: math.Inf(-1)},
		{Name: "string", Value: "ü\u2028\"\\\n,"},
		{Name: "blob", Value: []byte{0, 255, 10}, NoIndex: true},
		{Name: "time", Value: time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC)},
		{Name: "geo", Value: datastore.GeoPoint{Lat: 12.5, Lng: -70.25}},
		{Name: "key", Value: parent},
		{Name: "entity",
			Value: &datastore.Entity{Key: parent,
				Properties: []datastore.Property{{Name: "in", Value: int64(1), NoIndex: true},
					{Name: "deep",
						Value: &datastore.Entity{Properties: []datastore.Property{{Name: "x", Value: "y"}}}}}}},
		{Name: "list", Value: []any{int64(1), "two", nil, 3.0}},
		{Name: "unindexed list", Value: []any{"a", "b"}, NoIndex: true},
		{Name: "empty list", Value: []any{}},
	}
}

// TestEntities exports whole entities in each format, reads the files with a reader of the format,
// and puts the entities. They must equal the original ones.
func TestEntities(t *testing.T) {
	for _, format := range []export.Format{export.JSONLines, export.CSV, export.Parquet} {
		t.Run(string(format), func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			x := must(export.NewEntities("entities", bucket, &export.Options{Format: format}))
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				const n = 20
				for i := range int64(n) {
					key, properties := everything(i)
					if _, err := w.Client.Put(t.Context(), key, &properties); err != nil {
						t.Fatal(err)
					}
				}
				run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Everything", Namespace: "north"},
					mapper.NoParams{}, &export.StartOptions{Folder: folder})
				if err != nil {
					t.Fatal(err)
				}
				m, err := run.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				text, err := bucket.ReadAll(t.Context(), folder+"/"+m.Files[0].Name)
				if err != nil {
					t.Fatal(err)
				}
				checkEntities(t, readEntities(t, format, text), n)
			})
		})
	}
}

func readEntities(t *testing.T, format export.Format, text []byte) (all []export.Entity) {
	t.Helper()
	var lines []string
	switch format {
	case export.JSONLines:
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	case export.CSV:
		rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows[1:] {
			lines = append(lines, row[1])
		}
	case export.Parquet:
		rows, err := parquet.Read[export.Row](bytes.NewReader(text), int64(len(text)))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			lines = append(lines, row.Entity)
		}
	case export.JSON:
		var list []json.RawMessage
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			lines = append(lines, string(one))
		}
	case export.Avro:
		r, err := ocf.NewReader(bytes.NewReader(text))
		for err == nil {
			var row export.Row
			if err = r.Decode(&row); err == nil {
				lines = append(lines, row.Entity)
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	for _, l := range lines {
		var e export.Entity
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("%v in %s", err, l)
		}
		all = append(all, e)
	}
	return all
}

func checkEntities(t *testing.T, all []export.Entity, n int64) {
	t.Helper()
	slices.SortFunc(all, func(a, b export.Entity) int { return int(a.Key.Parent.ID - b.Key.Parent.ID) })
	if len(all) != int(n) {
		t.Fatalf("%d entities, want %d", len(all), n)
	}
	byName := cmpopts.SortSlices(func(a, b datastore.Property) bool { return a.Name < b.Name })
	for i, e := range all {
		key, properties := everything(int64(i))
		if !e.Key.Equal(key) {
			t.Errorf("key %v, want %v", e.Key, key)
		}
		if diff := cmp.Diff([]datastore.Property(properties), []datastore.Property(e.Properties), byName,
			cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("entity %d is not as it was stored: %s", i, diff)
		}
	}
}

// TestEntitiesKeysOnly starts an export of whole entities by a query that reads only keys. Its files
// would have entities without properties, so the start must be refused.
func TestEntitiesKeysOnly(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	for _, format := range []export.Format{export.JSONLines, export.Avro} {
		x := must(export.NewEntities("entities", bucket, &export.Options{Format: format}))
		mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("Order", 1, nil), &order{N: 5}); err != nil {
				t.Fatal(err)
			}
			q := mapper.Query{Kind: "Order", KeysOnly: true}
			_, err := x.Start(t.Context(), w.Engine, q, mapper.NoParams{}, nil)
			wantRefused(t, err, "reads only keys")
			_, err = w.Engine.StartByName(t.Context(), "entities", q, []byte("{}"), nil)
			wantRefused(t, err, "reads only keys")
		})
	}
}

// TestEntityText compares the JSON of an entity with a fixed text, because files may be read by a
// newer program.
func TestEntityText(t *testing.T) {
	e := export.Entity{Key: datastore.IDKey("A", 7, datastore.NameKey("B", "b", nil)),
		Properties: datastore.PropertyList{{Name: "n", Value: int64(1), NoIndex: true}}}
	text, err := json.Marshal(e)
	want := `{"key":{"path":[{"kind":"B","name":"b"},{"kind":"A","id":"7"}]},` +
		`"properties":{"n":{"integerValue":"1","excludeFromIndexes":true}}}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if err := json.Unmarshal([]byte(`{"properties":{"n":{"noValue":1}}}`), &e); err == nil ||
		!strings.Contains(fmt.Sprint(err), "noValue") {
		t.Errorf("an unknown value is read: %v", err)
	}
}

// TestEntityMinusZero checks that the JSON of an entity distinguishes -0 from 0, also in a
// geographical point.
func TestEntityMinusZero(t *testing.T) {
	minus := math.Copysign(0, -1)
	list := datastore.PropertyList{{Name: "f", Value: minus},
		{Name: "p", Value: datastore.GeoPoint{Lat: minus, Lng: minus}}}
	text, err := json.Marshal(export.Entity{Key: datastore.IDKey("K", 1, nil), Properties: list})
	if err != nil {
		t.Fatal(err)
	}
	var back export.Entity
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(back.Properties, func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
	point := back.Properties[1].Value.(datastore.GeoPoint)
	for _, f := range []float64{back.Properties[0].Value.(float64), point.Lat, point.Lng} {
		if f != 0 || !math.Signbit(f) {
			t.Errorf("%v is read, want -0: %s", f, text)
		}
	}
}

// TestEntityAsTheClient reads an entity that Google's Go client can't write. Entity.Properties must
// equal what the client's Get returns.
func TestEntityAsTheClient(t *testing.T) {
	text := `{"key":{"path":[{"kind":"K","id":"1"}]},"properties":{"nothing":{},` +
		`"in":{"entityValue":{"properties":{"q":{"arrayValue":{"values":[` +
		`{"integerValue":"1"},{"integerValue":"2","excludeFromIndexes":true}]}}}}},` +
		`"first":{"arrayValue":{"values":[{"stringValue":"a","excludeFromIndexes":true},{"stringValue":"b"}]}},` +
		`"last":{"arrayValue":{"values":[{"stringValue":"a"},{"stringValue":"b","excludeFromIndexes":true}]}}}}`
	var e export.Entity
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	want := datastore.PropertyList{
		{Name: "first", Value: []any{"a", "b"}, NoIndex: true},
		{Name: "in",
			Value: &datastore.Entity{Properties: []datastore.Property{{Name: "q", Value: []any{int64(1), int64(2)}}}}},
		{Name: "last", Value: []any{"a", "b"}}, {Name: "nothing"},
	}
	if diff := cmp.Diff(want, e.Properties); diff != "" {
		t.Errorf("properties (-want +got): %s", diff)
	}
}
