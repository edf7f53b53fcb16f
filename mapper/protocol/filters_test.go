package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// A session is an entity that jobs delete when it has not been used for long.
type session struct {
	Seen  time.Time `datastore:"seen"`
	User  string    `datastore:"user"`
	Hits  int64     `datastore:"hits"`
	Score float64   `datastore:"score"`
	Text  string    `datastore:"text,noindex"`
}

// deleteAll is an Update that deletes every entity.
var deleteAll = mapper.Update("delete-all",
	func(_ context.Context, s *mapper.Entity[session], _ mapper.NoParams) error {
		s.Delete(s.Key)
		s.Count("deleted", 1)
		return nil
	})

// putSessions puts n sessions. Each was last seen an hour after the one before.
func (w *world) putSessions(kind string, n int) {
	w.Helper()
	keys, all := make([]*datastore.Key, n), make([]session, n)
	for i := range all {
		keys[i] = datastore.NameKey(kind, fmt.Sprintf("s-%x", i*7919%10007), nil)
		all[i] = session{Seen: epoch.Add(time.Duration(i) * time.Hour), User: fmt.Sprint("user ", i%7), Hits: int64(i),
			Score: float64(i), Text: "a text"}
	}
	for i := 0; i < n; i += 400 {
		if _, err := w.client.PutMulti(w.Context(), keys[i:min(n, i+400)], all[i:min(n, i+400)]); err != nil {
			w.Fatal(err)
		}
	}
}

// TestDeleteByAge deletes entities older than a time, with each query that a user may try first.
// The database has no composite indexes.
func TestDeleteByAge(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	test := func(t *testing.T, w *world, old int) {
		n := 3 * old
		before := mapper.Where("seen", "<", epoch.Add(time.Duration(old)*time.Hour))
		for name, c := range map[string]struct {
			q       mapper.Query
			refused bool // whether the start is refused without an index; the error must then say what to do
			reads   bool
		}{
			"KeysOnly": {mapper.Query{KeysOnly: true, Filters: []mapper.Filter{before}}, false, true},
			"KeysOnly, bounded": {mapper.Query{KeysOnly: true,
				Filters: []mapper.Filter{before, mapper.Where("seen", ">=", epoch)}}, false, true},
			"ShardBy": {mapper.Query{ShardBy: "seen", Filters: []mapper.Filter{before}}, false, true},
			"ShardBy and KeysOnly": {mapper.Query{ShardBy: "seen", KeysOnly: true, Filters: []mapper.Filter{before}},
				false, true},
			"a filter alone": {mapper.Query{Filters: []mapper.Filter{before}}, true, true},
		} {
			c.q.Kind = strings.ReplaceAll(name, " ", "")
			w.putSessions(c.q.Kind, n)
			for _, dryRun := range []bool{true, false} {
				start := func() (*mapper.Job, error) {
					return deleteAll.Start(t.Context(), w.engine, c.q, mapper.NoParams{},
						&mapper.StartOptions{PageSize: 50, DryRun: dryRun})
				}
				job, err := start()
				if c.refused && err != nil { // Google's Firestore emulator needs no index
					if !errors.Is(err, mapper.ErrInvalidArgument) ||
						!strings.Contains(err.Error(), `Or do without by Query.ShardBy "seen"`) ||
						!strings.Contains(err.Error(), "KeysOnly") {
						t.Errorf("%s: %v", name, err)
					}
					c.q.ShardBy = "seen" // as the error recommends
					job, err = start()
				}
				if err != nil {
					t.Errorf("%s, dry run %v: %v", name, dryRun, err)
					continue
				}
				deleted := map[bool]int{false: old, true: 0}[dryRun]
				s := w.wait(job)
				if s.Processed != int64(old) || s.Written != int64(old) || s.Counters["deleted"] != int64(old) {
					t.Errorf("%s, dry run %v: %+v", name, dryRun, s)
				}
				left, err := w.client.GetAll(t.Context(), datastore.NewQuery(c.q.Kind).KeysOnly(), nil)
				if err != nil || len(left) != n-deleted {
					t.Errorf("%s, dry run %v: %d are left, %v", name, dryRun, len(left), err)
				}
				proof, err := job.Verify(t.Context(), nil)
				if err != nil || len(proof.Problems) > 0 {
					t.Errorf("%s, dry run %v: %+v, %v", name, dryRun, proof, err)
				}
			}
		}
		// filters with "=" only, in key order
		w.putSessions("Session", 70)
		q := mapper.Query{Kind: "Session", KeysOnly: true, Filters: []mapper.Filter{mapper.Where("user", "=", "user 3"),
			mapper.Where("hits", "=", 10)}}
		job, err := deleteAll.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Written != 1 || s.Query.ShardBy != "" {
			t.Errorf("equalities: %+v", s)
		}
	}
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}}, deleteAll), 300)
		})
	})
	old := testflag.Size(t, 0, 60, 300)
	for name, p := range map[string]google.Product{"google": google.Classic, "firestore": google.Firestore} {
		t.Run(name, func(t *testing.T) {
			test(t, newWorld(t, setting{client: googletest.Client(t, p)}, deleteAll), old)
		})
	}
}

// TestDeleteByAgeSparesTheRenewed updates the times of sessions while a job deletes old sessions by
// their keys. A session that is young when its page commits must stay.
func TestDeleteByAgeSparesTheRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}, queue: few(10)}, deleteAll)
		w.putSessions("Session", 600)
		q := mapper.Query{Kind: "Session", KeysOnly: true,
			Filters: []mapper.Filter{mapper.Where("seen", "<", epoch.Add(400*time.Hour)),
				mapper.Where("user", "=", "user 3")}}
		if _, err := deleteAll.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil); err == nil ||
			!strings.Contains(err.Error(), "  - name: user\n  - name: seen") {
			t.Errorf("with an equality: %v", err)
		}
		q.Filters = q.Filters[:1]
		renewed := 0
		job, err := deleteAll.Start(t.Context(), w.engine, q, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20, Rate: mapper.Rate{EntitiesPerSecond: 40}})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 400; i += 5 {
			key := datastore.NameKey("Session", fmt.Sprintf("s-%x", i*7919%10007), nil)
			_, err := w.client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
				var s session
				if err := tx.Get(key, &s); err != nil {
					return err
				}
				s.Seen = epoch.Add(1e4 * time.Hour)
				_, err := tx.Put(key, &s)
				return err
			})
			time.Sleep(100 * time.Millisecond)
			switch {
			case err == nil:
				renewed++
			case !errors.Is(err, datastore.ErrNoSuchEntity) && !errors.Is(err, datastore.ErrConcurrentTransaction):
				t.Fatal(err)
			}
		}
		s := w.wait(job)
		left, err := w.client.GetAll(t.Context(), datastore.NewQuery("Session").KeysOnly(), nil)
		if err != nil || len(left) != 200+renewed || s.Processed != int64(400-renewed) || renewed == 0 ||
			renewed == 80 {
			t.Errorf("%d are left, %v; %d were renewed; %+v", len(left), err, renewed, s)
		}
	})
}

// TestFilterTypes starts jobs whose filters compare a property with a value of another type than
// the stored values.
func TestFilterTypes(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const day = `"2020-01-02T00:00:00Z"`
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}}, deleteAll, lookAtUser)
		w.putSessions("Session", 40)
		mixed := []datastore.PropertyList{{{Name: "seen", Value: nil}, {Name: "v", Value: int64(1)}},
			{{Name: "seen", Value: epoch}, {Name: "v", Value: "x"}},
			{{Name: "other", Value: true}, {Name: "v", Value: []any{int64(1), true}}}}
		for i := range mixed {
			key := datastore.IDKey("Mixed", int64(1+i), nil)
			key.Namespace = "n"
			if _, err := w.client.Put(t.Context(), key, &mixed[i]); err != nil {
				t.Fatal(err)
			}
		}
		for filters, want := range map[string]string{
			`[{"property": "seen", "op": "<", "value": ` + day +
				`}]`: `"seen" < compares with a value of the type string, and entities of the kind "Session" have ` +
				`values of the type time, which Datastore orders by their type alone: such a value is ` +
				`DATETIME('` + strings.Trim(day, `"`) + `') in GQL, and {"time": ` + day + `} in JSON`,
			`[{"property": "seen", "op": "<", "value": {"time": ` + day + `}}]`: "",
			`[{"property": "seen", "op": ">", "value": "2020"}]`:                "type string",
			`[{"property": "seen", "op": "=", "value": "2020"}]`:                "type string",
			`[{"property": "seen", "op": "<", "value": 1577836800000000}]`:      "type integer",
			`[{"property": "hits", "op": "<", "value": 5}]`:                     "",
			`[{"property": "hits", "op": "<", "value": {"int": "5"}}]`:          "",
			`[{"property": "hits", "op": "<", "value": 5.0}]`:                   "type float",
			`[{"property": "hits", "op": "in", "value": [1, 2, "3"]}]`:          "type string",
			`[{"property": "hits", "op": "in", "value": [1, 2, null]}]`:         "",
			`[{"property": "score", "op": "<", "value": 5}]`: `such a value is 5.0 in GQL, and 5.0 ` +
				`or {"float": 5} in JSON`,
			`[{"property": "score", "op": "<", "value": {"float": 5}}]`:              "",
			`[{"property": "score", "op": ">", "value": 5, "any_type": true}]`:       "",
			`[{"property": "user", "op": "=", "value": {"key": "EgkKB1Nlc3Npb24"}}]`: "*",
			`[{"property": "user", "op": "=", "value": true}]`:                       "type boolean",
			`[{"property": "user", "op": "=", "value": null}]`:                       "",
			`[{"property": "user", "op": "=", "value": "nobody"}]`:                   "",
			`[{"property": "none", "op": "=", "value": 5}]`: `no entity has an indexed ` +
				`property "none"`,
			`[{"property": "sean", "op": "<", "value": {"time": ` + day +
				`}}]`: `no entity has an indexed property "sean"`,
			`[{"property": "text", "op": "=", "value": "a text"}]`: `no entity has an indexed property ` +
				`"text"`,
			`[{"property": "text", "op": ">", "value": 5, "any_type": true}]`:    "",
			`[{"property": "user", "op": ">=", "value": {"bytes": "dXNlcg=="}}]`: "type bytes",
		} {
			var q mapper.Query
			err := json.Unmarshal([]byte(`{"kind": "Session", "filters": `+filters+`}`), &q)
			if want == "*" {
				if err == nil {
					t.Errorf("%s: no error", filters)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", filters, err)
				continue
			}
			q.ShardBy = q.Filters[0].Property
			if op := q.Filters[0].Op; op == "=" || op == "in" {
				q.ShardBy = ""
			}
			_, err = deleteAll.Start(t.Context(), w.engine, q, mapper.NoParams{},
				&mapper.StartOptions{AllowOverlap: true,
					Rate: mapper.Rate{EntitiesPerSecond: 50, WritesPerSecond: 200}})
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", filters, err)
			case want != "" && (!errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), want)):
				t.Errorf("%s: %v, want %q", filters, err, want)
			}
		}
		// A filter on a property that no entity has may be intended. A comparison with null is
		// never a mistake.
		absent := mapper.Query{Kind: "Session", KeysOnly: true,
			Filters: []mapper.Filter{mapper.Where("sean", "<", epoch)}}
		if _, err := deleteAll.Start(t.Context(), w.engine, absent, mapper.NoParams{},
			&mapper.StartOptions{AllowEmpty: true, AllowOverlap: true}); err != nil {
			t.Errorf("an absent property that is allowed: %v", err)
		}
		gone := datastore.PropertyList{{Name: "gone", Value: nil}}
		if _, err := w.client.Put(t.Context(), datastore.IDKey("Null", 1, nil), &gone); err != nil {
			t.Fatal(err)
		}
		nulls := mapper.Query{Kind: "Null", KeysOnly: true, Filters: []mapper.Filter{mapper.Where("gone", "=", 5)}}
		if _, err := deleteAll.Start(t.Context(), w.engine, nulls, mapper.NoParams{}, nil); err != nil {
			t.Errorf("a property that is null: %v", err)
		}
		// Filters with null, and filters on properties with values of several types.
		in := func(f ...mapper.Filter) error {
			_, err := deleteAll.Start(t.Context(), w.engine, mapper.Query{Kind: "Mixed", Namespaces: []string{"", "n"},
				ShardBy: f[0].Property, Filters: f}, mapper.NoParams{}, &mapper.StartOptions{AllowOverlap: true})
			return err
		}
		if err := in(mapper.Where("seen", "<", epoch.Add(-time.Hour))); err == nil ||
			!strings.Contains(err.Error(), "lets null pass") {
			t.Errorf("null: %v", err)
		}
		if err := in(mapper.Where("seen", "<", epoch.Add(-time.Hour)), mapper.Where("seen", ">", nil)); err != nil {
			t.Errorf("null is left out: %v", err)
		}
		if err := in(mapper.Where("v", ">", 0)); err == nil || !strings.Contains(err.Error(), "type string") {
			t.Errorf("several types: %v", err)
		}
		if err := in(mapper.Where("v", ">", 5), mapper.Where("v", "<", 9)); err != nil {
			t.Errorf("several types, bounded: %v", err)
		}
		time.Sleep(time.Hour)
	})
}

// TestFilterTypesOnEach starts jobs whose filter has a value of a wrong type, on the embedded
// Datastore and on Google's emulators.
func TestFilterTypesOnEach(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, deleteAll)
		w.putSessions("Session", 10)
		null := datastore.PropertyList{{Name: "hits", Value: nil}}
		if _, err := client.Put(t.Context(), datastore.IDKey("Session", 1, nil), &null); err != nil {
			t.Fatal(err)
		}
		for want, filters := range map[string][]mapper.Filter{
			`"seen" = compares with a value of the type string`: {mapper.Where("seen", "=", "2020")},
			`"seen" < compares with a value of the type string`: {mapper.Where("seen", "<", "2020")},
			`"hits" = compares with a value of the type float`:  {mapper.Where("hits", "=", 5.0)},
			`"hits" < lets null pass as well`:                   {mapper.Where("hits", "<", 5)},
			"": {mapper.Where("hits", "<", 5),
				mapper.Where("hits", ">", nil)},
		} {
			job, err := deleteAll.Start(t.Context(), w.engine, mapper.Query{Kind: "Session", KeysOnly: true,
				Filters: filters}, mapper.NoParams{}, nil)
			switch {
			case want != "":
				if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
					t.Errorf("%+v: %v, want %q", filters, err, want)
				}
			case err != nil:
				t.Errorf("filters %+v: %v", filters, err)
			default:
				if s := w.wait(job); s.Written != 5 {
					t.Errorf("%+v: %+v", filters, s)
				}
			}
		}
	})
}

// TestMistypedKind starts jobs over kinds without entities, and over queries without results.
func TestMistypedKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser, lookAtUser)
		put := func(kind, namespace string) {
			key := datastore.IDKey(kind, 1, nil)
			key.Namespace = namespace
			if _, err := w.client.Put(t.Context(), key, &user{UserID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		put("User", "")
		put("Guest", "n")
		for want, q := range map[string]mapper.Query{
			`the kind "Usr" has no entities in the default namespace: check`: {Kind: "Usr"},
			`the kind "User" has no entities in the namespace "n"`:           {Kind: "User", Namespace: "n"},
			`the kind "Geust" has no entities in the namespace "n"`: {Kinds: []string{"Guest", "Geust"},
				Namespace: "n"},
			`the kind "Geust" has no entities in any of the query's namespaces`: {Kinds: []string{"Guest", "Geust",
				"User"}, AllNamespaces: true},
			`the kind "User" has no entities in any of the query's namespaces: check`: {Kind: "User",
				Namespaces: []string{"n", "m"}},
		} {
			_, err := checkUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%+v: %v, want %q", q, err, want)
			}
			if _, err := addCredit.Plan(t.Context(), w.engine, q, nil); !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("a plan of %+v: %v, want %q", q, err, want)
			}
			job, err := checkUser.Start(t.Context(), w.engine, q, mapper.NoParams{},
				&mapper.StartOptions{AllowEmpty: true})
			if err != nil {
				t.Fatal(err)
			}
			w.wait(job)
		}
		if jobs := records(t, w.client); len(jobs) != 5 {
			t.Errorf("%d jobs, want those that may be empty", len(jobs))
		}
		for _, q := range []mapper.Query{
			{Kind: "User", Filters: []mapper.Filter{mapper.Where("userid", "=", 7)}},
			{Kind: "User", Start: datastore.IDKey("User", 9, nil)},
			{Kind: "User", Ancestor: datastore.IDKey("None", 1, nil)},
			{Kind: "User", Namespaces: []string{"n", ""}},
			{Kinds: []string{"User", "Guest"}, AllNamespaces: true,
				Filters: []mapper.Filter{mapper.Where("userid", "=", 7)}},
		} {
			job, err := lookAtUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
			if err != nil {
				t.Errorf("query %+v: %v", q, err)
				continue
			}
			w.wait(job)
		}
	})
}

// TestOddNamesOfFilters filters and shards jobs by properties whose names contain signs, quotes and
// spaces. Google's client would interpret such names. Each entity also has the properties that such
// an interpretation would find.
func TestOddNamesOfFilters(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	visit := mapper.Visit("visit", func(context.Context, *mapper.Entity[struct{}], mapper.NoParams) error {
		return nil
	})
	remove := mapper.Update("remove", func(_ context.Context, e *mapper.Entity[struct{}], _ mapper.NoParams) error {
		e.Delete(e.Key)
		return nil
	})
	names := slices.Concat(anyentity.Names, []string{"n", "-n", "+n", " n", "n ", "`n`", `"n"`, "-", "+", "`", `"`,
		"- n", "n =", "n >"})
	// a name with a dot is a path
	names = slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, ".") })
	mappertest.Run(t, []mapper.AnyMapper{visit, remove}, nil, func(t *testing.T, w *mappertest.Env) {
		for i, name := range names {
			kind := fmt.Sprint("Odd", i)
			var keys []*datastore.Key
			var all []datastore.PropertyList
			for n := range int64(40) {
				list := datastore.PropertyList{{Name: name, Value: n}}
				for _, other := range []string{"n", "q"} {
					if other != name {
						list = append(list, datastore.Property{Name: other, Value: 1000 - n})
					}
				}
				keys, all = append(keys, datastore.IDKey(kind, n+1, nil)), append(all, list)
			}
			if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
				t.Fatal(err)
			}
			below := []mapper.Filter{mapper.Where(name, "<", int64(10))}
			for _, c := range []struct {
				m    *mapper.Mapper[mapper.NoParams]
				q    mapper.Query
				want int64
			}{
				{visit, mapper.Query{Filters: []mapper.Filter{mapper.Where(name, "=", int64(7))}}, 1},
				{visit, mapper.Query{Filters: below}, 10},
				{visit, mapper.Query{ShardBy: name}, 40},
				{visit, mapper.Query{ShardBy: name, Filters: below}, 10},
				{remove, mapper.Query{KeysOnly: true, Filters: below}, 10},
				{visit, mapper.Query{ShardBy: name}, 30},
			} {
				c.q.Kind = kind
				d, err := c.q.DatastoreQuery()
				if err != nil {
					t.Fatalf("%q: %v", name, err)
				}
				if n, err := w.Client.Count(t.Context(), d); err != nil || int64(n) != c.want {
					t.Errorf("%q: %d of %+v, %v, want %d", name, n, c.q, err, c.want)
				}
				job, err := c.m.Start(t.Context(), w.Engine, c.q, mapper.NoParams{}, &mapper.StartOptions{PageSize: 7})
				if err != nil {
					t.Errorf("%q: %+v: %v", name, c.q, err)
					continue
				}
				s, err := job.Wait(t.Context())
				if err != nil || s.State != mapper.StateSucceeded || s.Processed != c.want {
					t.Errorf("%q: %+v: status %+v, %v, want %d", name, c.q, s, err, c.want)
				}
			}
		}
	})
}
