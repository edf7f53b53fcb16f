package prebuilt_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// strangers returns values that all differ, but that are easily taken for each other, such as 1,
// 1.0 and "1".
func strangers() []any {
	at := time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC)
	key := func(namespace, kind, name string, id int64, parent *datastore.Key) *datastore.Key {
		return &datastore.Key{Namespace: namespace, Kind: kind, Name: name, ID: id, Parent: parent}
	}
	long := strings.Repeat("a", 200)
	return []any{
		nil, "null", "NULL", "", "(missing)", int64(1), 1.0, "1", "1.0", true, "true", false, int64(0), 0.0,
		math.Copysign(0, -1), math.NaN(), "NaN",
		math.Inf(1), math.Inf(-1), 1e21, "1e+21", []byte("1"), []byte{}, []byte("ab"), []byte("ba"), "BLOB(\"MQ\")", at,
		at.Add(time.Microsecond), "2026-10-24T00:00:00Z",
		at.UnixMicro(), key("", "K", "1", 0, nil), key("", "K", "", 1, nil), key("n", "K", "", 1, nil), key("m", "K",
			"", 1, nil), key("", "K,1", "", 1, nil),
		key("", "L", "x", 0, key("", "K", "1", 0, nil)), key("", "K", "1, L, \"x", 0,
			nil), "/K,1", datastore.GeoPoint{Lat: 1, Lng: 2}, datastore.GeoPoint{Lat: 2, Lng: 1},
		long, long + "a", long[:199] + "b", "a\nb", "a b", "a\u200eb", "ab", "a\"b", []any{},
		&datastore.Entity{Properties: []datastore.Property{{Name: "a", Value: int64(1)}}},
		&datastore.Entity{Properties: []datastore.Property{{Name: "a", Value: "1"}}},
		&datastore.Entity{},
	}
}

// TestCountTellsApart counts the values of strangers in properties with unusual names. Each value
// must have a counter of its own.
func TestCountTellsApart(t *testing.T) {
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		all := strangers()
		for _, by := range []string{"p", "a.b", "max(p", strings.Repeat("p", 120)} {
			func() {
				kind := fmt.Sprintf("K%d", len(by))
				for i, v := range all {
					list := &datastore.PropertyList{{Name: by, Value: v, NoIndex: true}}
					if _, err := w.Client.Put(t.Context(), datastore.IDKey(kind, int64(i+1), nil), list); err != nil {
						t.Fatalf("%v: %v", v, err)
					}
				}
				if _, err := w.Client.Put(t.Context(), datastore.NameKey(kind, "none", nil),
					&datastore.PropertyList{}); err != nil {
					t.Fatal(err)
				}
				s := run(t, w, "count", fmt.Sprintf(`{"by": %q}`, by), mapper.Query{Kind: kind}, mapper.StartOptions{})
				if len(s.Counters) != len(all)+2 || s.Failures > 0 {
					t.Errorf("%d counters, %d failures, want %d", len(s.Counters), s.Failures, len(all)+2)
				}
				for name, n := range s.Counters {
					if name != "entities" && n != 1 {
						t.Errorf("%q = %d, want 1", name, n)
					}
				}
			}()
		}
	})
}

// TestPathsAgree checks that a count, a condition and a filter find the same values for a name with
// a dot. The dot may be part of a property's name, or lead into an embedded entity.
func TestPathsAgree(t *testing.T) {
	inside := func(v any) any {
		return &datastore.Entity{Properties: []datastore.Property{{Name: "b", Value: v}}}
	}
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		for i, p := range []datastore.Property{
			{Name: "a.b", Value: int64(7)}, {Name: "a", Value: inside(int64(7))}, {Name: "a",
				Value: []any{inside(int64(1)), inside(int64(7))}},
			{Name: "b", Value: int64(7)}, {Name: "a", Value: int64(7)}, {Name: "a.b", Value: "7"},
		} {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("P", int64(i+1), nil),
				&datastore.PropertyList{p}); err != nil {
				t.Fatal(err)
			}
		}
		filter := mapper.Query{Kind: "P", Filters: []mapper.Filter{{Property: "a.b", Op: "=", Value: int64(7),
			AllowAnyType: true}}}
		found := run(t, w, "count", `{}`, filter, mapper.StartOptions{}).Counters["entities"]
		meets := run(t, w, "check", `{"condition": "a.b = 7"}`, mapper.Query{Kind: "P"},
			mapper.StartOptions{}).Counters["meets"]
		counted := run(t, w, "count", `{"by": "a.b"}`, mapper.Query{Kind: "P"}, mapper.StartOptions{}).Counters
		if found != 3 || meets != 3 || counted["a.b=7"] != 3 || counted[`a.b="7"`] != 1 ||
			counted["a.b (missing)"] != 2 {
			t.Errorf("a filter finds %d, a check %d, a count %v, want 3", found, meets, counted)
		}
		// Mappers that change properties must not confuse a property whose name has a dot with one
		// of an embedded entity.
		before := entities(t, w.Client, "P", "")
		for name, params := range map[string]string{"set": `{"property": "a.b", "value": 1}`,
			"drop": `{"properties": ["a.b"]}`, "rename": `{"from": "a.b", "to": "c"}`} {
			s := run(t, w, name, params, mapper.Query{Kind: "P", Start: datastore.IDKey("P", 2, nil),
				End: datastore.IDKey("P", 4, nil)}, mapper.StartOptions{})
			if s.Written != 0 || s.Failures != 2 {
				t.Errorf("%s: %+v, want two failures", name, s)
			}
		}
		if after := entities(t, w.Client, "P", ""); fmt.Sprint(len(after)) != fmt.Sprint(len(before)) {
			t.Errorf("%d entities, want %d", len(after), len(before))
		}
	})
}

// TestCheckTellsTypesApart compares each value of strangers with each other, by conditions.
// Different values are not equal. An inequality holds only between values of the same type, and
// never for NaN.
func TestCheckTellsTypesApart(t *testing.T) {
	literals := map[string]any{"0": int64(0), "0.0": 0.0, "'0'": "0", "TRUE": true,
		"DATETIME('2026-10-24T00:00:00Z')": time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC), "BLOB('MA')": []byte("0")}
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		all := strangers()
		for i, v := range all {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("V", int64(i+1), nil),
				&datastore.PropertyList{{Name: "p", Value: v, NoIndex: true}}); err != nil {
				t.Fatal(err)
			}
		}
		for literal, with := range literals {
			for _, op := range []string{"<", "<=", ">", ">="} {
				want := 0
				for _, v := range all {
					if f, ok := v.(float64); fmt.Sprintf("%T", v) == fmt.Sprintf("%T", with) && !(ok && math.IsNaN(f)) {
						if c := compare(v, with); c == 0 && len(op) == 2 || c < 0 && op[0] == '<' || c > 0 &&
							op[0] == '>' {
							want++
						}
					}
				}
				s := run(t, w, "check", fmt.Sprintf(`{"condition": "p %s %s"}`, op, literal), mapper.Query{Kind: "V"},
					mapper.StartOptions{})
				if s.Counters["meets"] != int64(want) || s.Failures != int64(len(all)-want) {
					t.Errorf("p %s %s: %d meet it, %d do not, want %d", op, literal, s.Counters["meets"], s.Failures,
						want)
				}
			}
		}
		for condition, want := range map[string]int{
			"p > NULL": len(all) - 2, "p IS NULL": 1, "p != NULL": len(all) - 2, "p = 0": 1, "p = 0.0": 1, "p = '1'": 1,
			"p = 1": 1, "p = 1.0": 1,
			"p != 1": len(all) - 2, "p NOT IN ARRAY(1, '1')": len(all) - 3, "p IN ARRAY(1, '1', NULL)": 3,
			"p >= 0 OR p >= 0.0": 7, "p >= 0 AND p < 1": 1,
		} {
			s := run(t, w, "check", fmt.Sprintf(`{"condition": "%s"}`, condition), mapper.Query{Kind: "V"},
				mapper.StartOptions{})
			if s.Counters["meets"] != int64(want) {
				t.Errorf("%s: %d meet it, want %d", condition, s.Counters["meets"], want)
			}
		}
		job, err := w.Engine.StartByName(t.Context(), "check", mapper.Query{Kind: "V"},
			[]byte(`{"condition": "p >= 0"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		failures, _, err := job.FailuresPage(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range failures {
			if f.Key.ID == 8 && !strings.Contains(f.Error,
				"of the type string, and is compared with the type integer") { // "1"
				t.Errorf("the failure of a text says %q", f.Error)
			}
		}
	})
}

// TestCheckSaysWhy checks the text of failures. If the condition does not explain why an entity
// fails it, the failure must have the reason. The reason must name only types that matter.
func TestCheckSaysWhy(t *testing.T) {
	const (
		odd   = `"p" is -0.0, which is below 0.0 and not equal to it, as Datastore orders floats`
		above = `"p" is 0.0, which is above -0.0 and not equal to it, as Datastore orders floats`
		nan   = `"p" is NaN, which is neither above nor below anything`
		typed = ` is of the type `
	)
	minus := math.Copysign(0, -1)
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		for i, c := range []struct {
			condition string
			p         any
			// the reason in the failure; "meets": the entity meets the condition; empty: the
			// failure has no reason
			want string
		}{
			{"p >= 0.0", minus, odd}, {"p = 0.0", minus, odd}, {"p IN ARRAY(1.0, 0.0)", minus, odd},
			{"p != 0.0", minus, "meets"},
			{"p <= -0.0", 0.0, above}, {"p < 0.0", minus, "meets"}, {"p > 0.0", minus, ""}, {"p >= 0.0", -1.0, ""},
			{"p >= 0 OR p >= 0.0", minus, odd}, {"p >= 0.0 OR p >= 0", minus, odd},
			{"p >= 0 OR p >= 0.0", math.NaN(), nan},
			{"p >= 0 OR p >= 0.0", -1.0, ""}, {"p >= 0 OR p >= 0.0", int64(-1), ""},
			{"p >= 0 OR p >= 0.0", 0.0, "meets"},
			{"p >= 0 OR p >= 0.0", "x", `"p" is of the type string, and is compared with the type integer`},
			{"p >= 0 OR q = 1", "x", `"p"` + typed}, {"(p >= 0 OR p >= 0.0) AND q = 1", 1.0, ""},
			{"q = 1 AND p >= 0", 1.0, ""}, {"q = 2 AND p >= 0", 1.0, `"p"` + typed},
			{"p >= 0 OR p >= 0.0", []any{int64(-1), "x"}, `"p" is of the type string`}, {"p >= 0", []any{}, ""},
			{"p >= 0", math.NaN(), `"p"` + typed}, {"p > NULL", math.NaN(), "meets"}, {"p > NULL", nil, ""},
			{"p = 1", nil, ""},
			{"p <= NULL OR p >= 0", -1.0, `"p"` + typed}, {"p = NULL OR p = 5", 5.0, `"p"` + typed},
		} {
			kind := fmt.Sprintf("C%d", i)
			if _, err := w.Client.Put(t.Context(), datastore.IDKey(kind, 1, nil),
				&datastore.PropertyList{{Name: "p", Value: c.p}, {Name: "q", Value: int64(2)}}); err != nil {
				t.Fatal(err)
			}
			s := run(t, w, "check", fmt.Sprintf(`{"condition": %q}`, c.condition), mapper.Query{Kind: kind},
				mapper.StartOptions{ID: kind})
			failures, _, err := w.Engine.Job(kind).FailuresPage(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if len(failures) == 0 {
				if c.want != "meets" || s.Counters["meets"] != 1 {
					t.Errorf("%v meets %s: %+v", c.p, c.condition, s)
				}
				continue
			}
			_, why, _ := strings.Cut(failures[0].Error, "does not meet the condition")
			if c.want == "" && why != "" || !strings.Contains(why, c.want) {
				t.Errorf("%v does not meet %s%s, want %s", c.p, c.condition, why, c.want)
			}
		}
	})
}

func compare(a, b any) int {
	switch a := a.(type) {
	case int64:
		return cmpOf(a, b.(int64))
	case float64: // -0.0 is less than 0.0 in Datastore's order
		if a == 0 && b.(float64) == 0 {
			return cmpOf(math.Copysign(1, a), math.Copysign(1, b.(float64)))
		}
		return cmpOf(a, b.(float64))
	case string:
		return strings.Compare(a, b.(string))
	case []byte:
		return strings.Compare(string(a), string(b.([]byte)))
	case time.Time:
		return a.Compare(b.(time.Time))
	}
	return map[[2]bool]int{{false, true}: -1, {true, false}: 1}[[2]bool{a.(bool), b.(bool)}]
}

func cmpOf[T int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// TestOwnKindsAreNobodys checks that jobs over the kinds of scattermap's records are refused. Jobs
// over the same kinds in other namespaces must start, and so must jobs over kinds whose names only
// look reserved.
func TestOwnKindsAreNobodys(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		for _, m := range prebuilt.Mappers() {
			params := map[string]string{"set": `{"property": "p", "value": 1}`, "rename": `{"from": "a", "to": "b"}`,
				"drop": `{"properties": ["a"]}`, "copy": `{"kind": "Copy"}`,
				"check": `{"condition": "a = 1"}`}[m.Name()]
			if params == "" {
				params = "{}"
			}
			for _, kind := range []string{"ScattermapJob", "ScattermapRange", "ScattermapUndoBatch",
				"ScattermapDraft", "ScattermapSlot", "ScattermapSchedule", "ScattermapPart", "ScattermapFile",
				"ScattermapOfLaterBuilds"} {
				for _, q := range []mapper.Query{{Kind: kind}, {Kinds: []string{"Account", kind}}, {Kind: kind,
					AllNamespaces: true}, {Kind: kind, Namespaces: []string{"", "n"}}} {
					for _, rehearse := range []bool{false, true} {
						_, err := w.Engine.StartByName(t.Context(), m.Name(), q, []byte(params),
							&mapper.StartOptions{DryRun: rehearse, AllowEmpty: true})
						if !errors.Is(err, mapper.ErrInvalidArgument) {
							t.Errorf("%s over %+v: %v, want it refused", m.Name(), q, err)
						}
					}
				}
			}
		}
		for _, key := range []*datastore.Key{{Kind: "ScattermapJob", Name: "a", Namespace: "n"}, {Kind: "__session",
			Name: "a"}, {Kind: "session__", Name: "a"}, {Kind: "__", Name: "a"}} {
			if _, err := w.Client.Put(t.Context(), key, &datastore.PropertyList{{Name: "a",
				Value: int64(1)}}); err != nil {
				t.Fatal(err)
			}
			if s := run(t, w, "delete", `{}`, mapper.Query{Kind: key.Kind, Namespace: key.Namespace},
				mapper.StartOptions{}); s.Written != 1 {
				t.Errorf("delete of %v: %+v", key, s)
			}
		}
	})
}
