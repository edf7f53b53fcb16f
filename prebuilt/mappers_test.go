package prebuilt_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	_ "github.com/scattermap/scattermap/internal/testflag" // defines flags that are passed to all packages' tests
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

const n = 60

// put writes accounts with one of three plans. Some have no plan, one has the plan null, and some
// have tags.
func put(t *testing.T, client *datastore.Client) {
	t.Helper()
	for i := range n {
		e := datastore.PropertyList{{Name: "Balance", Value: int64(i)}}
		switch {
		case i == 1:
			e = append(e, datastore.Property{Name: "plan", Value: nil})
		case i%3 != 0:
			e = append(e, datastore.Property{Name: "plan", Value: []string{"", "free", "paid"}[i%3]})
		}
		if i%10 == 5 {
			e = append(e, datastore.Property{Name: "tags", Value: []any{"a", int64(5)}})
		}
		key := datastore.NameKey("Account", fmt.Sprintf("a%02d", i), datastore.IDKey("Bank", int64(i%2+1), nil))
		if _, err := client.Put(t.Context(), key, &e); err != nil {
			t.Fatal(err)
		}
	}
}

// entities returns the entities of a kind in a namespace, by key.
func entities(t *testing.T, client *datastore.Client, kind, namespace string) map[string]map[string]any {
	t.Helper()
	var all []datastore.PropertyList
	keys, err := client.GetAll(t.Context(), datastore.NewQuery(kind).Namespace(namespace), &all)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]map[string]any)
	for i, key := range keys {
		m := make(map[string]any)
		for _, p := range all[i] {
			m[p.Name] = p.Value
			if p.NoIndex {
				m[p.Name+" noindex"] = true
			}
		}
		found[key.String()] = m
	}
	return found
}

// run starts a mapper by name with parameters in JSON, as operators do. It waits for the end of the
// job, and returns the job's status.
func run(t *testing.T, w *mappertest.Env, name, params string, q mapper.Query, o mapper.StartOptions) *mapper.Status {
	t.Helper()
	if q.Kind == "" && len(q.Kinds) == 0 {
		q.Kind = "Account"
	}
	o.FailureLimit = -1
	job, err := w.Engine.StartByName(t.Context(), name, q, json.RawMessage(params), &o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := job.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func inWorld(t *testing.T, test func(t *testing.T, w *mappertest.Env)) {
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		put(t, w.Client)
		test(t, w)
	})
}

func TestCount(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		for params, want := range map[string]map[string]int64{
			`{}`: {"entities": 60},
			`{"by": "plan"}`: {"entities": 60, `plan="free"`: 19, `plan="paid"`: 20, "plan=null": 1,
				"plan (missing)": 20},
			`{"by": "tags"}`:   {"entities": 60, `tags="a"`: 6, "tags=5": 6, "tags (missing)": 54},
			`{"by": "nobody"}`: {"entities": 60, "nobody (missing)": 60},
		} {
			if s := run(t, w, "count", params, mapper.Query{}, mapper.StartOptions{}); !reflect.DeepEqual(s.Counters,
				want) {
				t.Errorf("count %s: %v, want %v", params, s.Counters, want)
			}
		}
	})
}

// TestTouch checks that touch writes each entity of the query unchanged, and writes no other
// entity.
func TestTouch(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		want := entities(t, w.Client, "Account", "")
		s := run(t, w, "touch", `{}`, mapper.Query{}, mapper.StartOptions{})
		if s.State != mapper.StateSucceeded || s.Written != n {
			t.Errorf("touch: %+v, want that all %d are written", s, n)
		}
		if diff := cmp.Diff(want, entities(t, w.Client, "Account", "")); diff != "" {
			t.Errorf("touch has changed something: (-want +got)\n%.1500s", diff)
		}
	})
}

// TestChanges runs jobs that set, rename and drop properties, and that delete entities. Other
// properties and entities must stay unchanged, and a rehearsal must change nothing.
func TestChanges(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		want := entities(t, w.Client, "Account", "")
		check := func(what string) {
			t.Helper()
			if diff := cmp.Diff(want, entities(t, w.Client, "Account", "")); diff != "" {
				t.Fatalf("%s: (-want +got)\n%.1500s", what, diff)
			}
		}
		s := run(t, w, "set", `{"property": "plan", "value": "free"}`, mapper.Query{},
			mapper.StartOptions{DryRun: true})
		if s.Counters["would(change plan)"] != 41 || s.Written != 41 {
			t.Errorf("the rehearsal: %+v", s)
		}
		check("a rehearsal")
		s = run(t, w, "set", `{"property": "plan", "value": "free"}`, mapper.Query{}, mapper.StartOptions{})
		for _, e := range want {
			e["plan"] = "free"
		}
		check("set")
		if s.Written != 41 || s.Processed != n {
			t.Errorf("set has written %d of %d", s.Written, s.Processed)
		}
		at := time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC)
		run(t, w, "set", `{"property": "expires", "value": {"time": "2026-10-24T00:00:00Z"}, "noindex": true}`,
			mapper.Query{Filters: []mapper.Filter{mapper.Where("Balance", "<", 10)}}, mapper.StartOptions{})
		for _, e := range want {
			if e["Balance"].(int64) < 10 {
				e["expires"], e["expires noindex"] = at, true
			}
		}
		for key, e := range entities(t, w.Client, "Account", "") {
			if when, ok := e["expires"].(time.Time); ok {
				if !when.Equal(at) {
					t.Errorf("%s expires at %v", key, when)
				}
				want[key]["expires"] = when // the client returns times in its local time zone
			}
		}
		check("set of some")
		run(t, w, "rename", `{"from": "tags", "to": "labels"}`, mapper.Query{}, mapper.StartOptions{})
		for _, e := range want {
			if tags, ok := e["tags"]; ok {
				e["labels"] = tags
				delete(e, "tags")
			}
		}
		check("rename")
		if s := run(t, w, "rename", `{"from": "plan", "to": "Balance"}`, mapper.Query{},
			mapper.StartOptions{}); s.Failures != n && s.State != mapper.StateFailed {
			t.Errorf("rename over another property: %+v", s)
		}
		check("rename over another property")
		run(t, w, "drop", `{"properties": ["labels", "expires"]}`, mapper.Query{}, mapper.StartOptions{})
		for _, e := range want {
			for _, name := range []string{"labels", "expires", "expires noindex"} {
				delete(e, name)
			}
		}
		check("drop")
		run(t, w, "delete", `{}`, mapper.Query{Filters: []mapper.Filter{mapper.Where("Balance", ">=", 50)}},
			mapper.StartOptions{})
		for key, e := range want {
			if e["Balance"].(int64) >= 50 {
				delete(want, key)
			}
		}
		check("delete")
	})
}

func TestCopy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		from := entities(t, w.Client, "Account", "")
		run(t, w, "copy", `{"kind": "Backup"}`, mapper.Query{}, mapper.StartOptions{})
		run(t, w, "copy", `{"namespace": "archive"}`, mapper.Query{}, mapper.StartOptions{})
		renamed := make(map[string]map[string]any)
		for key, e := range from {
			renamed[strings.ReplaceAll(key, "/Account,", "/Backup,")] = e
		}
		if diff := cmp.Diff(renamed, entities(t, w.Client, "Backup", "")); diff != "" {
			t.Errorf("to another kind: (-want +got)\n%.1500s", diff)
		}
		if diff := cmp.Diff(from, entities(t, w.Client, "Account", "archive")); diff != "" {
			t.Errorf("to another namespace: (-want +got)\n%.1500s", diff)
		}
		if diff := cmp.Diff(from, entities(t, w.Client, "Account", "")); diff != "" {
			t.Errorf("the entities themselves: (-want +got)\n%.1500s", diff)
		}
	})
}

// TestKeysOnly checks that all mappers that need entities refuse or fail in a job that reads only
// keys. Otherwise "count" would count entities as if they had no properties, and "touch" would
// succeed without a write.
func TestKeysOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		q := mapper.Query{Kind: "Account", KeysOnly: true}
		for name, params := range map[string]string{
			"touch": `{}`, "count": `{"by": "plan"}`, "set": `{"property": "plan", "value": 1}`,
			"drop": `{"properties": ["plan"]}`, "rename": `{"from": "plan", "to": "level"}`,
		} {
			s := run(t, w, name, params, q, mapper.StartOptions{})
			if s.Failures != n || s.Processed != 0 {
				t.Errorf("%s: %s, %d processed and %d failures, want all %d to fail", name, s.State, s.Processed,
					s.Failures, n)
			}
		}
		for name, params := range map[string]string{"check": `{"condition": "Balance >= 0"}`, "copy": `{"kind": "X"}`} {
			if _, err := w.Engine.StartByName(t.Context(), name, q, json.RawMessage(params), nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "reads only keys") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s := run(t, w, "count", `{}`, q, mapper.StartOptions{}); s.Counters["entities"] != n {
			t.Errorf("%v", s.Counters)
		}
		if s := run(t, w, "delete", `{}`, q, mapper.StartOptions{}); s.Written != n {
			t.Errorf("%+v", s)
		}
	})
}

// TestCopyOfSeveral copies several kinds to one, and several namespaces to one. Entities of the
// same name do not overwrite each other: the start is refused, or one of them is a failure.
func TestCopyOfSeveral(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		put := func(kind, namespace, name string) {
			key := datastore.NameKey(kind, name, nil)
			key.Namespace = namespace
			of := &datastore.PropertyList{{Name: "Of", Value: kind + namespace}}
			if _, err := w.Client.Put(t.Context(), key, of); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			put("Cat", "", name)
			put("Dog", "", name+name)
			put("Dog", "x", name)
			put("Dog", "y", name+"'s")
		}
		put("Dog", "", "b")
		put("Dog", "y", "b")
		put("All", "", "c")
		for _, c := range []struct {
			query          mapper.Query
			params         string
			refused        string
			kind           string // of the copies
			to             string // their namespace
			copied, failed int64
		}{
			{mapper.Query{Kinds: []string{"Cat", "Dog"}}, `{"kind": "All"`, "several kinds", "All", "", 5, 2},
			{mapper.Query{Kind: "Dog", AllNamespaces: true}, `{"namespace": "z"`, "several namespaces", "", "", 0, 0},
			{mapper.Query{Kind: "Dog", Namespaces: []string{"", "x", "y"}}, `{"namespace": "z"`, "several namespaces",
				"Dog", "z", 9, 2},
			{mapper.Query{Kind: "Dog", Namespaces: []string{"x", "y"}}, `{"kind": "Old", "namespace": "z"`,
				"several namespaces", "Old", "z", 6, 1},
			{mapper.Query{Kinds: []string{"Cat"}}, `{"kind": "Tom"`, "", "Tom", "", 3, 0},
			{mapper.Query{Kinds: []string{"Cat", "Dog"}}, `{"namespace": "z2"`, "", "Dog", "z2", 7, 0},
		} {
			job, err := w.Engine.StartByName(t.Context(), "copy", c.query, json.RawMessage(c.params+"}"), nil)
			refused := errors.Is(err, mapper.ErrInvalidArgument) && strings.Contains(fmt.Sprint(err), c.refused)
			if err == nil {
				_, err = job.Wait(t.Context())
			}
			if c.refused == "" && err != nil || c.refused != "" && !refused {
				t.Fatalf("copy %s}: %v", c.params, err)
			}
			if c.copied == 0 || c.refused == "" {
				continue // over all namespaces, the job also meets copies
			}
			s := run(t, w, "copy", c.params+`, "insert": true}`, c.query, mapper.StartOptions{})
			found := entities(t, w.Client, c.kind, c.to)
			if s.Processed != c.copied || s.Failures != c.failed || c.kind == "All" && found["/All,c"]["Of"] != "All" {
				t.Errorf("copy %s: %d copied, %d failed, want %d and %d: %v", c.params, s.Processed, s.Failures,
					c.copied, c.failed, found)
			}
		}
	})
}

// TestCopyOfDescendants copies the descendants of an ancestor out of its namespace, which the query
// has only in the ancestor.
func TestCopyOfDescendants(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		ancestor := datastore.NameKey("Bank", "b", nil)
		ancestor.Namespace = "acme"
		key := datastore.NameKey("Account", "a", ancestor)
		key.Namespace = "acme"
		balance := &datastore.PropertyList{{Name: "Balance", Value: int64(1)}}
		if _, err := w.Client.Put(t.Context(), key, balance); err != nil {
			t.Fatal(err)
		}
		q := mapper.Query{Kind: "Account", Ancestor: ancestor}
		if s := run(t, w, "copy", `{"namespace": ""}`, q, mapper.StartOptions{}); s.Written+s.Processed < 1 {
			t.Errorf("%+v", s)
		}
		at := datastore.NameKey("Account", "a", datastore.NameKey("Bank", "b", nil))
		if err := w.Client.Get(t.Context(), at, new(datastore.PropertyList)); err != nil {
			t.Error(err)
		}
		if _, err := w.Engine.StartByName(t.Context(), "copy", q, json.RawMessage(`{"namespace": "acme"}`),
			nil); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a copy onto itself: %v", err)
		}
	})
}

// TestParams checks that starts and plans with wrong parameters are refused, and that the error
// names the wrong parameter.
func TestParams(t *testing.T) {
	inWorld(t, func(t *testing.T, w *mappertest.Env) {
		before := entities(t, w.Client, "Account", "")
		for _, c := range [][3]string{
			{"set", `{"property": "plan"}`, `"value" is missing`},
			{"set", `{"value": 1}`, `"property" is missing`},
			{"set", `{"property": "", "value": 1}`, `"property" is missing`},
			{"set", `{"property": null, "value": 1}`, `"property" is null`},
			{"set", `{"property": "plan", "value": 1, "noindex": null}`, `"noindex" is null`},
			{"set", `{"property": "plan", "value": 1, "property": "Balance"}`, `"property" comes twice`},
			{"set", `{"property": "plan", "value": 1, "Property": "Balance"}`, `"property" and "Property"`},
			{"set", `{"property": "plan", "Value": {"time": "2026-10-24T00:00:00Z", "time": "2026-10-25T00:00:00Z"}}`,
				`the value: "time" comes twice`},
			{"set", `{"property": "plan", "value": "` + strings.Repeat("x", 2000) + `"}`,
				`"value": a text or blob has more than 1500 bytes`},
			{"set", `{"property": "plan", "values": 1}`, `"values"`},
			{"set", `{"property": "a", "value": {"tme": 1}}`, "tme"},
			{"set", `{"property": "__key__", "value": 1}`, "reserved"},
			{"set", `{"property": "plan", "value": "\ud800"}`, "half of a character"},
			{"set", `{"property": "plan", "value": 9223372036854775808}`, "9223372036854775808"},
			{"set", `{"property": "plan", "value": 9007199254740993.0}`, "9007199254740993.0"},
			{"set", `{"property": "plan", "value": {"float": 9007199254740993}}`, "9007199254740993"},
			{"rename", `{"from": "plan"}`, `"to" is missing`},
			{"rename", `{"to": "plan"}`, `"from" is missing`},
			{"rename", `{"from": "plan", "to": "plan"}`, "both"},
			{"drop", `{}`, `"properties" is missing`},
			{"drop", `{"properties": null}`, `"properties" is missing`},
			{"drop", `{"properties": []}`, `"properties" is missing`},
			{"drop", `{"properties": ["plan", ""]}`, `"properties[1]" is missing`},
			{"drop", `{"properties": ["plan", null]}`, `"properties[1]" is null`},
			{"copy", `{}`, `"kind" and "namespace" are both missing`},
			{"copy", `{"kind": null}`, `"kind" is null`},
			{"copy", `{"kind": "__x__"}`, "reserved"},
			{"copy", `{"kind": "ScattermapJob"}`, "own records"},
			{"copy", `{"kind": "ScattermapPart", "namespace": ""}`, "own records"},
			{"copy", `{"namespace": "a b"}`, `"namespace"`},
			{"count", `{"per": "plan"}`, `"per"`},
			{"count", `{"by": null}`, `"by" is null`},
			{"check", `{}`, `"condition" is missing`},
			{"check", `{"condition": null}`, `"condition" is null`},
			{"check", `{"condition": "a = 1", "by": "a"}`, `"by"`},
			{"touch", `{"property": "plan"}`, `"property"`},
			{"delete", `{"kind": "plan"}`, `"kind"`},
			{"delete", `null`, "null"},
			{"delete", `{} {}`, "more than one"},
		} {
			_, err := w.Engine.StartByName(t.Context(), c[0], mapper.Query{Kind: "Account"}, json.RawMessage(c[1]), nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), c[2]) {
				t.Errorf("%s %s: %v, want %q", c[0], c[1], err, c[2])
			}
			_, err = w.Engine.PlanByName(t.Context(), c[0], mapper.Query{Kind: "Account"},
				&mapper.PlanOptions{Params: json.RawMessage(c[1])})
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), c[2]) {
				t.Errorf("a plan of %s %s: %v, want %q", c[0], c[1], err, c[2])
			}
		}
		if diff := cmp.Diff(before, entities(t, w.Client, "Account", "")); diff != "" {
			t.Error(diff)
		}
		for _, params := range []string{`{"kind": "Account"}`, `{"namespace": ""}`,
			`{"kind": "Account", "namespace": ""}`} {
			_, err := w.Engine.StartByName(t.Context(), "copy", mapper.Query{Kind: "Account"}, json.RawMessage(params),
				nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "would be the entities themselves") {
				t.Errorf("copy %s: %v", params, err)
			}
		}
		run(t, w, "set", `{"property": "essay", "noindex": true, "value": "`+strings.Repeat("x", 2000)+`"}`,
			mapper.Query{}, mapper.StartOptions{})
		run(t, w, "drop", `{"properties": ["essay"]}`, mapper.Query{}, mapper.StartOptions{})
		// In Go, nil is the value null.
		job, err := prebuilt.SetProperty.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"},
			prebuilt.SetPropertyParams{Property: "note"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.Written != n {
			t.Errorf("set to nil: %+v, %v", s, err)
		}
	})
}

// TestCheck checks accounts with conditions of all forms, and compares the number of accounts that
// meet each.
func TestCheck(t *testing.T) {
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		put(t, w.Client)
		noted := &datastore.PropertyList{{Name: "Balance", Value: int64(1000), NoIndex: true},
			{Name: "plan", Value: "free", NoIndex: true}}
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Account", "noindex", nil), noted); err != nil {
			t.Fatal(err)
		}
		inner := &datastore.Entity{Properties: []datastore.Property{{Name: "size", Value: int64(2)}}}
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Box", "one", nil),
			&datastore.PropertyList{{Name: "inside", Value: inner},
				{Name: "several", Value: []any{inner}}}); err != nil {
			t.Fatal(err)
		}
		for condition, meets := range map[string]int64{
			"inside.size = 2": 1, "inside.size != 3": 1, "inside.size != 2": 0, "inside.size NOT IN ARRAY(3, 4)": 1,
			"inside.size NOT IN ARRAY(2, 4)": 0, "several.size != 3": 1, "several.size != 2": 0, "inside.none != 2": 0,
		} {
			if s := run(t, w, "check", fmt.Sprintf(`{"condition": %q}`, condition), mapper.Query{Kind: "Box"},
				mapper.StartOptions{}); s.Counters["meets"] != meets {
				t.Errorf("%s: %v", condition, s.Counters)
			}
		}
		// the numbers of accounts that meet each condition, of n accounts and one whose properties
		// are not indexed
		for condition, meets := range map[string]int64{
			"Balance >= 0":                                n + 1,
			"Balance >= 10 AND Balance < 20":              10,
			"Balance < 10 OR Balance >= 20":               n + 1 - 10,
			"plan = 'free'":                               n/3 - 1 + 1,
			"plan IS NULL":                                1,
			"plan IN ARRAY('free', 'paid')":               2*n/3 - 1 + 1,
			"plan != 'free'":                              n/3 + 1,
			"plan NOT IN ARRAY('free', 'paid')":           1,
			"tags CONTAINS 'a' AND tags = 5":              n / 10,
			"tags != 'a'":                                 n / 10,
			"(Balance = 1 OR Balance = 2) AND plan = 'x'": 0,
		} {
			s := run(t, w, "check", fmt.Sprintf(`{"condition": %q}`, condition), mapper.Query{}, mapper.StartOptions{})
			if s.Counters["meets"] != meets || s.Failures != n+1-meets {
				t.Errorf("%s: %v, %d failures, want %d that meet it", condition, s.Counters, s.Failures, meets)
			}
		}
		job, err := w.Engine.StartByName(t.Context(), "check", mapper.Query{Kind: "Account"},
			[]byte(`{"condition": "Balance = 1"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceededWithFailures ||
			s.Failures != n {
			t.Errorf("with no limit of its own: %+v, %v", s, err)
		}
		for condition, want := range map[string]string{
			"": "is missing", "Balance >": "column 10", "Balance = 1 LIMIT 1": "more than a condition",
			"__key__ = KEY(Account, 1)":         "range of keys",
			"__key__ HAS ANCESTOR KEY(Bank, 1)": "HAS_ANCESTOR", "Balance = @b": "@b",
			"bank = KEY(PROJECT('other'), Bank, 1)": "omit PROJECT",
		} {
			_, err := w.Engine.StartByName(t.Context(), "check", mapper.Query{Kind: "Account"},
				fmt.Appendf(nil, `{"condition": %q}`, condition), nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", condition, err, want)
			}
		}
	})
}

// TestErase erases a namespace, and checks the certificate. It also checks that there is no
// certificate if entities are put during the erasure.
func TestErase(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	kept := make(map[string][]byte)
	erase := prebuilt.Erase(prebuilt.EraseOptions{Key: private,
		Keep: func(_ context.Context, name string, c []byte) error {
			kept[name] = c
			return nil
		}})
	mappertest.Run(t, append(prebuilt.Mappers(), erase), nil, func(t *testing.T, w *mappertest.Env) {
		put := func(kind, namespace string, n int) {
			t.Helper()
			for i := range n {
				key := datastore.NameKey(kind, fmt.Sprint(i), nil)
				key.Namespace = namespace
				if _, err := w.Client.Put(t.Context(), key,
					&datastore.PropertyList{{Name: "n", Value: int64(i)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		put("Account", "gone", 300)
		put("Order", "gone", 200)
		put("Account", "other", 10)
		put("Account", "", 10)
		start := func(id string, q mapper.Query, params string) (*mapper.Job, error) {
			return w.Engine.StartByName(t.Context(), "erase", q, []byte(params), &mapper.StartOptions{ID: id})
		}
		for want, q := range map[string]mapper.Query{
			"a namespace, and nothing else": {}, "and nothing else": {Namespace: "gone", Kind: "Account"},
			"nothing else": {AllNamespaces: true}, "has no entities": {Namespace: "nobody"},
		} {
			if _, err := start("refused", q, "{}"); !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v", q, err)
			}
		}
		if _, err := start("refused", mapper.Query{Namespace: "gone"}, `{"a": 1}`); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Error(err)
		}
		job, err := start("erasure", mapper.Query{Namespace: "gone"}, "{}")
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Written != 500 {
			t.Fatalf("%+v, %v", s, err)
		}
		for kind, namespaces := range map[string]map[string]int{"Account": {"gone": 0, "other": 10, "": 10},
			"Order": {"gone": 0}} {
			for namespace, want := range namespaces {
				if n, err := w.Client.Count(t.Context(), datastore.NewQuery(kind).Namespace(namespace)); err != nil ||
					n != want {
					t.Errorf("%d of %s in %q, %v", n, kind, namespace, err)
				}
			}
		}
		file := kept["erasure.certificate.json"]
		c, err := prebuilt.ReadCertificate(file, public)
		if err != nil || c.Namespace != "gone" || !reflect.DeepEqual(c.Kinds, []string{"Account", "Order"}) ||
			c.Deleted != 500 || c.Remaining != 0 || c.Coverage.Ranges == 0 || c.Coverage.Pending != 0 ||
			c.Job != "erasure" || c.Ended.Before(c.Started) {
			t.Errorf("%+v, %v", c, err)
		}
		other, _, _ := ed25519.GenerateKey(nil)
		if _, err := prebuilt.ReadCertificate(file, other); err == nil {
			t.Error("a certificate of another key is taken")
		}
		var parts map[string]any
		if err := json.Unmarshal(file, &parts); err != nil {
			t.Fatal(err)
		}
		text, _ := base64.StdEncoding.DecodeString(parts["certificate"].(string))
		parts["certificate"] = base64.StdEncoding.EncodeToString([]byte(strings.Replace(string(text), `"deleted": 500`,
			`"deleted": 501`, 1)))
		forged, _ := json.Marshal(parts)
		if _, err := prebuilt.ReadCertificate(forged, public); err == nil {
			t.Error("a certificate that was changed is taken")
		}

		// Entities are put while the job runs, so there must be no certificate.
		put("Account", "busy", 600)
		// keys before, between and after the existing ones
		keys := []*datastore.Key{datastore.NameKey("Account", "!", nil), datastore.NameKey("Account", "3", nil),
			datastore.NameKey("Account", "~", nil)}
		for _, key := range keys {
			key.Namespace = "busy"
		}
		ended, stopped := make(chan struct{}), make(chan struct{})
		go func() { // puts the entities until the job has ended, so that some exist after its last page
			defer close(stopped)
			for {
				_, _ = w.Client.PutMulti(t.Context(), keys, make([]datastore.PropertyList, len(keys)))
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		if job, err = w.Engine.StartByName(t.Context(), "erase", mapper.Query{Namespace: "busy"}, []byte("{}"),
			&mapper.StartOptions{ID: "busy", PageSize: 50, Rate: mapper.Rate{EntitiesPerSecond: 100}}); err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		close(ended)
		<-stopped
		if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, "meanwhile") ||
			kept["busy.certificate.json"] != nil {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
